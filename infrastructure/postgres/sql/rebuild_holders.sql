-- Who uses a table now: transaction, process, and what is known of it.
SELECT l.virtualtransaction, l.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.xact_start)::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.relation = to_regclass(%(table)s) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
