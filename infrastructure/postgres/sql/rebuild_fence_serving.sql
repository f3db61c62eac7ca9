-- Whoever runs the serving version has its rows in memory: with another token it is made to read them anew.
UPDATE onefold.checkpoints SET token = token + 1, owner = NULL, backend_pid = NULL, expires_at = NULL
WHERE projection = %(projection)s AND segment = 0
