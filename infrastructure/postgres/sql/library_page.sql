SELECT position, stream, version, type, coalesce(raw, convert_to(data::text, 'UTF8')), schema_version, occurred_at,
    recorded_at, event_id, metadata
FROM {log} WHERE position > %b AND position <= %b ORDER BY position LIMIT %b
