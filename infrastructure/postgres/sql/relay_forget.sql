DELETE FROM onefold.held_messages
WHERE id IN (
    SELECT id FROM onefold.held_messages WHERE resolved_at < clock_timestamp() - make_interval(secs => %s) LIMIT %s
)
