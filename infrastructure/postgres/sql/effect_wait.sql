UPDATE onefold.effects SET due_at = clock_timestamp() + make_interval(secs => %(delay)s), owner = NULL, error = %(error)s
WHERE id = %(id)s AND token = %(token)s AND due_at IS NOT NULL
