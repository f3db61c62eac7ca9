SELECT
    coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
    (SELECT extract(epoch FROM max(retention))::double precision FROM onefold.consumers WHERE ledger = 'any') AS retention_any,
    (SELECT extract(epoch FROM max(retention))::double precision FROM onefold.consumers WHERE ledger = 'time') AS retention_time,
    a.generation, a.name, a.starts_at,
    (SELECT max(ends_at) FROM onefold.ledger_partitions WHERE ledger = 'time') AS ceiling
FROM onefold.ledger_partitions a WHERE a.ledger = 'any' AND a.ends_at IS NULL
