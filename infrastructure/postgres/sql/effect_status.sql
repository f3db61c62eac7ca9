SELECT effect, sum(pending)::bigint, sum(running)::bigint, sum(dead)::bigint, max(oldest)
FROM (
    SELECT effect, count(*) FILTER (WHERE owner IS NULL OR due_at <= clock_timestamp()) AS pending,
        count(*) FILTER (WHERE owner IS NOT NULL AND due_at > clock_timestamp()) AS running, 0 AS dead,
        extract(epoch FROM clock_timestamp() - min(due_at) FILTER (WHERE due_at <= clock_timestamp()))::double precision
            AS oldest
    FROM (SELECT effect, owner, due_at FROM onefold.effects WHERE due_at IS NOT NULL LIMIT %(bound)s) open
    GROUP BY effect
    UNION ALL
    SELECT effect, 0, 0, count(*), NULL
    FROM (
        SELECT effect FROM onefold.effects WHERE dead_at IS NOT NULL AND resolution IS NULL LIMIT %(bound)s
    ) dead
    GROUP BY effect
) counted
WHERE %(effects)s::text[] IS NULL OR effect = ANY (%(effects)s)
GROUP BY effect ORDER BY effect
