SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type,
    CASE WHEN type = ANY (%b::text[]) THEN data::text END, metadata::text
FROM {log} WHERE position > %b ORDER BY position LIMIT %b
