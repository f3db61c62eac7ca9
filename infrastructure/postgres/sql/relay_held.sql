SELECT position, key, CASE WHEN keyed THEN key END, message_id, type, body, headers
FROM onefold.held_messages
WHERE relay = %s AND segment = %s AND key = %s AND resolved_at IS NULL ORDER BY position LIMIT %s
