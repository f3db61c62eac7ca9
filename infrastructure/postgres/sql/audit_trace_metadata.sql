SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data::text, raw, metadata::text
FROM {log} WHERE metadata ->> %(name)s = ANY (%(values)s::text[]) ORDER BY position LIMIT %(limit)s
