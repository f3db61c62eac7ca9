COPY {log} (position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data, raw, metadata)
FROM STDIN
