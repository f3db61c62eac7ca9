SELECT
    (SELECT coalesce(max(position), 0) FROM onefold.checkpoints),
    (SELECT coalesce(min(position), 0) FROM onefold.checkpoints),
    (SELECT coalesce(max(position), 0) FROM onefold.events),
    EXISTS (
        SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'onefold % write'
            AND state IN ('active', 'idle in transaction') AND xact_start IS NOT NULL
    )
