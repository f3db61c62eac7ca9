UPDATE onefold.held_messages SET resolved_at = clock_timestamp(), resolution = 'published'
WHERE relay = %s AND segment = %s AND position = ANY (%s) AND resolved_at IS NULL
