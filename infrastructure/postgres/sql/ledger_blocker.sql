-- Of those that hold a lock on one of the tables, the one whose transaction is open longest.
SELECT l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.relation = ANY (SELECT to_regclass(format('onefold.%%I', name)) FROM unnest(%s::text[]) AS t (name))
ORDER BY a.xact_start NULLS LAST LIMIT 1
