SELECT
    clock_timestamp() AS now,
    current_setting('fsync')::boolean AS fsync,
    current_setting('full_page_writes')::boolean AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('autovacuum')::boolean AS autovacuum,
    current_setting('track_activities')::boolean AS track_activities,
    current_setting('max_connections')::integer AS max_connections,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
    pg_notification_queue_usage() AS notification_queue,
    (SELECT age(datfrozenxid)::bigint FROM pg_database WHERE datname = current_database()) AS transaction_age,
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
    current_user AS role,
    pg_is_in_recovery() AS standby
