-- The rebuild's lock is held: whoever had this checkpoint before is gone, or hangs and is fenced by the token.
INSERT INTO onefold.checkpoints AS c (projection, segment, log, fingerprint, token, owner, backend_pid, expires_at)
VALUES (%(projection)s, -1, %(log)s, %(fingerprint)s, 1, %(owner)s, pg_backend_pid(),
    clock_timestamp() + make_interval(secs => %(lease)s))
ON CONFLICT (projection, segment) DO UPDATE
SET token = c.token + 1, owner = excluded.owner, backend_pid = excluded.backend_pid, expires_at = excluded.expires_at,
    attempts = 0, failure = NULL
RETURNING token, position
