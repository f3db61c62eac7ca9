INSERT INTO {table} AS s (stream, version, type, data, raw)
SELECT stream, version, type, data::jsonb, raw
FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::bytea[]) AS e (stream, version, type, data, raw)
ON CONFLICT (stream, version) DO UPDATE
SET type = excluded.type, data = excluded.data, raw = excluded.raw, taken_at = clock_timestamp()
WHERE (s.type, s.data, s.raw) IS DISTINCT FROM (excluded.type, excluded.data, excluded.raw)
