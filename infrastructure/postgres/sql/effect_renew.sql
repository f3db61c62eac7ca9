UPDATE onefold.effects SET due_at = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE id = %(id)s AND token = %(token)s AND due_at IS NOT NULL
