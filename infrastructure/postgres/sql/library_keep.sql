INSERT INTO {table} (stream, version, type, data, raw)
SELECT stream, version, type, data::jsonb, raw
FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::bytea[]) AS e (stream, version, type, data, raw)
