COPY (
    SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data, raw, metadata
    FROM {log} WHERE position = ANY ({positions}::bigint[]) ORDER BY position
) TO STDOUT (FORMAT binary)
