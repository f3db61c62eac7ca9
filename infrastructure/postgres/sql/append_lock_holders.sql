-- In this order: a server that is no standby any more has taken over the locks of the transactions prepared on it.
SELECT 'standby', 0 WHERE pg_is_in_recovery()
UNION ALL
SELECT virtualtransaction, pid FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((classid::bigint << 32) | objid::bigint) = %s
