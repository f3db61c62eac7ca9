-- From which instant on events may still be missing: now, or the beginning of the oldest append that is under way.
SELECT least(clock_timestamp(), min(a.xact_start))
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((l.classid::bigint << 32) | l.objid::bigint) = onefold.append_lock_key(%s::regclass)
