-- The condition that the index answers, and none that the planner could prefer: a scan of the positions.
WITH found AS MATERIALIZED (
    SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data, raw, metadata
    FROM {log} WHERE metadata @@ %(jsonpath)s::jsonpath
)
SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data::text, raw, metadata::text
FROM found ORDER BY position LIMIT %(limit)s
