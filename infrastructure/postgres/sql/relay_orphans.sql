SELECT channel, count(*) FROM (
    SELECT channel FROM onefold.outbox o
    WHERE NOT EXISTS (SELECT FROM onefold.relays r WHERE r.channel = o.channel AND r.source = 'outbox')
    LIMIT %s
) waiting GROUP BY channel ORDER BY channel
