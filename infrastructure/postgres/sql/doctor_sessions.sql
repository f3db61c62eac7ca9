SELECT pid, application_name, usename, coalesce(datname = current_database(), false) AS here, state,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age,
    extract(epoch FROM clock_timestamp() - state_change)::float8 AS silent,
    wait_event IS NOT DISTINCT FROM 'ClientRead' AND state LIKE 'idle in transaction%%' AS idle
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND clock_timestamp() - xact_start > make_interval(secs => %s)
UNION ALL
SELECT NULL, gid, owner, database = current_database(), 'prepared',
    extract(epoch FROM clock_timestamp() - prepared)::float8, NULL, true
FROM pg_prepared_xacts
WHERE clock_timestamp() - prepared > make_interval(secs => %s)
ORDER BY age DESC
