SELECT l.pid, extract(epoch FROM clock_timestamp() - a.xact_start)::float8, a.application_name
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((l.classid::bigint << 32) | l.objid::bigint) = %s
ORDER BY a.xact_start NULLS FIRST
