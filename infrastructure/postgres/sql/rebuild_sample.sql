-- Events at or after random positions, up to a settled one.
SELECT DISTINCT ON (position) found.*
FROM generate_series(1, %b::integer) AS n
CROSS JOIN LATERAL (SELECT (random() * %b::bigint)::bigint + n * 0 AS drawn) AS random
CROSS JOIN LATERAL (
    SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data::text, metadata::text
    FROM {log} WHERE position >= random.drawn AND position <= %b::bigint ORDER BY position LIMIT 1
) AS found
ORDER BY position
