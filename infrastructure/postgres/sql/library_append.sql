INSERT INTO {log} (version, occurred_at, event_id, schema_version, stream, type, data, raw, metadata)
SELECT version, coalesce(occurred_at, clock_timestamp()), event_id, schema_version, stream, type, data::jsonb, raw,
    metadata::jsonb
FROM unnest(%s::bigint[], %s::timestamptz[], %s::uuid[], %s::integer[], %s::text[], %s::text[], %s::text[], %s::bytea[],
    %s::text[]) WITH ORDINALITY
    AS e (version, occurred_at, event_id, schema_version, stream, type, data, raw, metadata, number)
ORDER BY number
RETURNING position, event_id
