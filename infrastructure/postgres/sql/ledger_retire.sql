UPDATE onefold.ledger_partitions SET retired_at = clock_timestamp()
WHERE ledger = %(ledger)s AND retired_at IS NULL AND ends_at < %(now)s - make_interval(secs => %(retention)s)
RETURNING name
