WITH sealed AS (
    -- Not before any first_seen in it: the seal has waited for every claim.
    UPDATE onefold.ledger_partitions SET ends_at = greatest(%(now)s, clock_timestamp())
    WHERE generation = %(generation)s AND ends_at IS NULL
    RETURNING ends_at
)
INSERT INTO onefold.ledger_partitions (name, ledger, generation, starts_at)
SELECT %(name)s, 'any', %(generation)s + 1, ends_at FROM sealed
