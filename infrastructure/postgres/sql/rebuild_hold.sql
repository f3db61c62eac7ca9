-- Keeps whoever runs the serving version from moving it: its token is another one from now on.
UPDATE onefold.checkpoints
SET token = token + 1, owner = %(owner)s, backend_pid = pg_backend_pid(),
    expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE projection = %(projection)s AND segment >= 0
RETURNING position
