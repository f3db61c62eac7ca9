UPDATE onefold.log_subscriptions s
SET owner = %(owner)s, token = s.token + 1, expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
FROM (
    SELECT consumer, log FROM onefold.log_subscriptions
    WHERE consumer = %(consumer)s AND log = %(log)s
        AND (owner IS NULL OR expires_at < clock_timestamp() OR %(alone)s)
    FOR UPDATE SKIP LOCKED
) free
WHERE s.consumer = free.consumer AND s.log = free.log
RETURNING s.position, s.token
