SELECT
    EXISTS (SELECT FROM onefold.ledger_partitions WHERE ledger = 'any' AND ends_at IS NULL) AS active,
    EXISTS (SELECT FROM onefold.consumers WHERE ledger = 'time') AS timed,
    (SELECT extract(epoch FROM max(ends_at) - clock_timestamp())::float8 FROM onefold.ledger_partitions
        WHERE ledger = 'time') AS ahead,
    (SELECT count(*) FROM onefold.ledger_partitions p
        WHERE retired_at < clock_timestamp() - interval '1 day'
            AND to_regclass(format('onefold.%I', p.name)) IS NOT NULL) AS undropped
