-- The clock as of before, and with each append that is under way since when it is: null for one of another role, or a prepared one.
SELECT statement_timestamp(), l.virtualtransaction, a.xact_start
FROM (SELECT) present LEFT JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((l.classid::bigint << 32) | l.objid::bigint) = onefold.append_lock_key(%s::regclass)
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
