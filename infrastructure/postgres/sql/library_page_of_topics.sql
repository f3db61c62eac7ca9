SELECT position, stream, version, type,
    CASE WHEN type = ANY (%b::text[]) THEN coalesce(raw, convert_to(data::text, 'UTF8')) END, schema_version, occurred_at,
    recorded_at, event_id, metadata
FROM {log} WHERE position > %b AND position <= %b ORDER BY position LIMIT %b
