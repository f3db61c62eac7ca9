UPDATE onefold.held_messages h SET asked_at = clock_timestamp()
WHERE h.id = %s AND h.resolved_at IS NULL
RETURNING relay, key
