SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data::text, metadata::text
FROM {log} WHERE position = %b
