UPDATE onefold.effects SET due_at = NULL, owner = NULL, done_at = clock_timestamp(), result = %(result)s::jsonb,
    error = %(note)s, remove_at = clock_timestamp() + make_interval(secs => %(keep)s)
WHERE id = %(id)s AND token = %(token)s AND due_at IS NOT NULL
