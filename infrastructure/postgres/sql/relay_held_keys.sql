SELECT DISTINCT ON (key) key, asked_at IS NOT NULL OR cause IS NULL FROM onefold.held_messages
WHERE relay = %s AND segment = %s AND resolved_at IS NULL ORDER BY key, position
