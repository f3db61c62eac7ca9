UPDATE onefold.held_messages h SET asked_at = clock_timestamp()
WHERE h.id = %s AND h.resolved_at IS NULL AND h.cause IS NOT NULL
RETURNING relay, key
