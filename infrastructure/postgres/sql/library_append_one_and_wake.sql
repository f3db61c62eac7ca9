INSERT INTO {log} (version, occurred_at, event_id, schema_version, stream, type, data, raw, metadata)
VALUES (%s, coalesce(%s, clock_timestamp()), %s, %s, %s, %s, %s::jsonb, %s, %s::jsonb)
RETURNING position, event_id, (SELECT pg_notify({channel}, '') IS NULL)
