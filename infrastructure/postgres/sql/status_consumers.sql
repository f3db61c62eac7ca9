SELECT c.id, c.consumer, c.ledger, c.ordering, extract(epoch FROM c.retention)::float8,
    (
        SELECT max(l.ends_at) FROM onefold.ledger_partitions l
        WHERE l.ledger = c.ledger AND l.retired_at IS NOT NULL
    ),
    (SELECT count(*) FROM (SELECT FROM onefold.parked p WHERE p.consumer = c.id LIMIT %(bound)s) waiting),
    (
        SELECT extract(epoch FROM clock_timestamp() - min(p.parked_at))::float8
        FROM onefold.parked p WHERE p.consumer = c.id
    ),
    (
        SELECT count(*) FROM (
            SELECT FROM onefold.dead_letters d WHERE d.consumer = c.id AND d.resolved_at IS NULL LIMIT %(bound)s
        ) open
    )
FROM onefold.consumers c
WHERE %(consumers)s::text[] IS NULL OR c.consumer = ANY (%(consumers)s)
ORDER BY c.consumer
