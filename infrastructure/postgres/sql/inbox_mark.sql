WITH marked AS (
    INSERT INTO onefold.in_hand AS h (worker, consumer, keys)
    VALUES (%(worker)s, %(consumer)s, %(keys)b)
    ON CONFLICT (worker) DO UPDATE SET keys = excluded.keys, since = clock_timestamp()
)
SELECT a.key, a.attempts, a.alone, a.among, a.error FROM onefold.attempts a
WHERE a.consumer = %(consumer)s AND a.key = ANY (%(keys)b)
