SELECT pid FROM pg_locks, hashtextextended('onefold rebuild ' || %(projection)s, 0) AS key
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = ((key >> 32) & 4294967295)::oid AND objid = (key & 4294967295)::oid AND objsubid = 1 AND granted
