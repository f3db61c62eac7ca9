SELECT consumer, worker, broker, backlog, in_flight, newest, claim_ms, started_at,
    extract(epoch FROM clock_timestamp() - seen_at)::float8
FROM onefold.consumer_workers
WHERE consumer = ANY (%s) AND seen_at > clock_timestamp() - make_interval(secs => %s)
ORDER BY started_at, worker
