WITH snapshot AS (
    SELECT version, state::text FROM onefold.snapshots
    WHERE log = %b AND stream = %b AND fingerprint = %b AND version <= %b
)
SELECT NULL::bigint AS position, version, NULL::timestamptz, NULL::timestamptz, NULL::uuid, NULL::integer,
    NULL::text, NULL::text, state, NULL::text
FROM snapshot
UNION ALL
SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data::text, metadata::text
FROM {log} WHERE stream = %b AND version > coalesce((SELECT version FROM snapshot), 0) AND version <= %b
ORDER BY version
