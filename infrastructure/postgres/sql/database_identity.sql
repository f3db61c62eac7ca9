-- The server, the database in it, and the timeline, which a failover and a restore to a point in time begin anew.
SELECT format('%s.%s.%s', s.system_identifier, d.oid, left(pg_walfile_name(pg_current_wal_lsn()), 8))
FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
