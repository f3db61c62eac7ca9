INSERT INTO onefold.consumer_workers AS w (worker, consumer, broker, backlog, in_flight, newest, claim_ms)
SELECT %(worker)s, c.id, %(broker)s, %(backlog)s, %(in_flight)s, %(newest)s, %(claim_ms)s
FROM onefold.consumers c WHERE c.consumer = %(consumer)s
ON CONFLICT (worker) DO UPDATE SET backlog = excluded.backlog, in_flight = excluded.in_flight,
    newest = excluded.newest, claim_ms = excluded.claim_ms, seen_at = clock_timestamp()
