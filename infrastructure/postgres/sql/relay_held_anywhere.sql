SELECT DISTINCT key FROM onefold.held_messages WHERE relay = %s AND resolved_at IS NULL
