INSERT INTO {log} (version, occurred_at, event_id, schema_version, stream, type, data, metadata)
VALUES (%s, coalesce(%s, clock_timestamp()), %s, %s, %s, %s, %s::jsonb, %s::jsonb)
RETURNING position, recorded_at, occurred_at
