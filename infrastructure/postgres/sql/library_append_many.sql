INSERT INTO {log} (version, occurred_at, event_id, schema_version, stream, type, data, raw, metadata)
SELECT version, coalesce(occurred_at, clock_timestamp()), event_id, schema_version, stream, type, data::jsonb, raw,
    metadata::jsonb
FROM unnest(%b::bigint[], %b::timestamptz[], %b::uuid[], %b::integer[], %b::text[], %b::text[], %b::text[], %b::bytea[],
    %b::text[]) WITH ORDINALITY
    AS e (version, occurred_at, event_id, schema_version, stream, type, data, raw, metadata, number)
ORDER BY number
RETURNING position, event_id
