SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data::text, metadata::text
FROM (
    -- A page ends with the event that takes it over 16 MB as stored, so that large events do not fill the memory.
    SELECT l.*, sum(coalesce(pg_column_size(data), 0)) OVER (ORDER BY stream, version ROWS UNBOUNDED PRECEDING)
        - coalesce(pg_column_size(data), 0) AS before
    FROM {log} l
    WHERE (stream, version) > (%b::text, %b::bigint) AND stream < %b::text AND position <= %b::bigint
        AND type = ANY (%b::text[])
    ORDER BY stream, version LIMIT %b
) page
WHERE before < 16777216
ORDER BY stream, version
