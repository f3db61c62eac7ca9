WITH RECURSIVE due (effect) AS (
    (SELECT effect FROM onefold.effects WHERE due_at IS NOT NULL ORDER BY effect LIMIT 1)
    UNION ALL
    SELECT (
        SELECT e.effect FROM onefold.effects e WHERE e.due_at IS NOT NULL AND e.effect > due.effect
        ORDER BY e.effect LIMIT 1
    )
    FROM due WHERE due.effect IS NOT NULL
), dead (effect) AS (
    (SELECT effect FROM onefold.effects WHERE dead_at IS NOT NULL ORDER BY effect LIMIT 1)
    UNION ALL
    SELECT (
        SELECT e.effect FROM onefold.effects e WHERE e.dead_at IS NOT NULL AND e.effect > dead.effect
        ORDER BY e.effect LIMIT 1
    )
    FROM dead WHERE dead.effect IS NOT NULL
), names (effect) AS (
    SELECT unnest(%(declared)s::text[])
    UNION
    SELECT effect FROM due WHERE effect IS NOT NULL AND %(others)s
    UNION
    SELECT effect FROM dead WHERE effect IS NOT NULL AND %(others)s
)
SELECT n.effect, open.pending, open.running, given_up.dead, open.oldest
FROM names n
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE NOT held) AS pending, count(*) FILTER (WHERE held) AS running,
        extract(epoch FROM clock_timestamp() - min(due_at) FILTER (WHERE due_at <= clock_timestamp()))::double precision
            AS oldest
    FROM (
        SELECT e.due_at, e.owner IS NOT NULL AND e.due_at > clock_timestamp() AS held FROM onefold.effects e
        WHERE e.effect = n.effect AND e.due_at IS NOT NULL ORDER BY e.due_at LIMIT %(bound)s
    ) counted
) open
CROSS JOIN LATERAL (
    SELECT count(*) AS dead FROM (
        SELECT FROM onefold.effects e
        WHERE e.effect = n.effect AND e.dead_at IS NOT NULL AND e.resolution IS NULL LIMIT %(bound)s
    ) counted
) given_up
ORDER BY n.effect
