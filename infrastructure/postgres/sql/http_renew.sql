-- A lease whose end is being written is let alone.
UPDATE onefold.http_claims SET expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE (key, token) IN (
    SELECT c.key, c.token FROM onefold.http_claims c
    JOIN unnest(%(keys)s::uuid[], %(tokens)s::uuid[]) AS mine (key, token) USING (key, token)
    FOR UPDATE OF c SKIP LOCKED
)
RETURNING token
