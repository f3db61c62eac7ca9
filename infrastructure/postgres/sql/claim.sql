UPDATE onefold.checkpoints c
SET owner = %(owner)s,
    token = CASE WHEN c.owner = %(owner)s THEN c.token ELSE c.token + 1 END,
    backend_pid = pg_backend_pid(),
    expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
FROM (
    SELECT projection, segment FROM onefold.checkpoints
    WHERE projection = %(projection)s AND segment = %(segment)s
        AND (owner IS NULL OR owner = %(owner)s OR expires_at < clock_timestamp())
    FOR UPDATE SKIP LOCKED
) free
WHERE c.projection = free.projection AND c.segment = free.segment
RETURNING c.position, c.token, c.fingerprint
