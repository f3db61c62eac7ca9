SELECT greatest(0, coalesce((SELECT max(position) FROM onefold.events), 0) - %s), (
    SELECT extract(epoch FROM clock_timestamp() - recorded_at)::float8 FROM onefold.events
    WHERE position > %s ORDER BY position LIMIT 1
)
