-- One step into the index for each channel, however much waits in it.
WITH RECURSIVE channels AS (
    (SELECT channel FROM onefold.outbox ORDER BY channel LIMIT 1)
    UNION ALL
    SELECT (SELECT o.channel FROM onefold.outbox o WHERE o.channel > c.channel ORDER BY o.channel LIMIT 1)
    FROM channels c WHERE c.channel IS NOT NULL
)
SELECT c.channel, (
    SELECT count(*) FROM (SELECT FROM onefold.outbox o WHERE o.channel = c.channel LIMIT %s) waiting
)
FROM channels c
WHERE c.channel IS NOT NULL
    AND NOT EXISTS (SELECT FROM onefold.relays r WHERE r.channel = c.channel AND r.source = 'outbox')
ORDER BY c.channel
