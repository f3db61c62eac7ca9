UPDATE onefold.effects SET first_try_at = clock_timestamp()
WHERE id = %(id)s AND token = %(token)s AND due_at IS NOT NULL
