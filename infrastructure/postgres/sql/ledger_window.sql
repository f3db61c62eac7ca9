SELECT
    (SELECT max(ends_at) FROM onefold.ledger_partitions WHERE ledger = %(ledger)s AND retired_at IS NOT NULL),
    (SELECT max(ends_at) FROM onefold.ledger_partitions WHERE ledger = %(ledger)s AND ledger = 'time')
