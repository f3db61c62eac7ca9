UPDATE onefold.effects SET due_at = NULL, owner = NULL, dead_at = clock_timestamp(), outcome = %(outcome)s,
    error = %(error)s
WHERE id = %(id)s AND token = %(token)s AND due_at IS NOT NULL
