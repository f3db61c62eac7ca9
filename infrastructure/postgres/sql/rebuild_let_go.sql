UPDATE onefold.checkpoints SET owner = NULL, backend_pid = NULL, expires_at = NULL
WHERE projection = %(projection)s AND segment >= 0 AND owner = %(owner)s
