WITH dead AS (
    DELETE FROM onefold.in_hand h
    WHERE NOT EXISTS (
        SELECT FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.classid = x'4f460002'::bigint::oid AND l.objid = h.worker::oid
            AND l.objsubid = 2 AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    )
    RETURNING h.consumer, h.keys
), hit AS (
    SELECT dead.consumer, k.key, count(*) FILTER (WHERE cardinality(dead.keys) = 1)::integer AS alone,
        count(*) FILTER (WHERE cardinality(dead.keys) > 1)::integer AS among
    FROM dead CROSS JOIN unnest(dead.keys) AS k (key)
    GROUP BY dead.consumer, k.key
)
INSERT INTO onefold.attempts AS a (consumer, key, alone, among, error)
SELECT consumer, key, alone, among, 'the process, or its connection, ended while it had this message in hand'
FROM hit ORDER BY consumer, key
ON CONFLICT (consumer, key) DO UPDATE
SET alone = a.alone + excluded.alone, among = a.among + excluded.among, error = excluded.error,
    last_at = clock_timestamp()
