UPDATE onefold.relays r
SET owner = %(owner)s, token = r.token + 1, expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
FROM (
    SELECT relay, segment FROM onefold.relays
    WHERE relay = %(relay)s AND (owner IS NULL OR expires_at < clock_timestamp())
        AND segment <> ALL (%(apart)s::smallint[])
    ORDER BY segment LIMIT 1 FOR UPDATE SKIP LOCKED
) free
WHERE r.relay = free.relay AND r.segment = free.segment
RETURNING r.segment, r.segments, r.position, r.token
