COPY (
    SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data, raw, metadata
    FROM {log} WHERE position >= {first} AND position <= {last} ORDER BY position
) TO STDOUT (FORMAT binary)
