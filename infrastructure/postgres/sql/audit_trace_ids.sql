SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data::text, raw, metadata::text
FROM {log} WHERE event_id = ANY (%(ids)s::uuid[]) ORDER BY position LIMIT %(limit)s
