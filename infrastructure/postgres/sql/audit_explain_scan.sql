SELECT position, version, occurred_at, recorded_at, event_id, schema_version, stream, type, data::text, raw, metadata::text
FROM {log}
WHERE position > %(after)s AND type = ANY (%(types)s::text[])
    AND (%(key)s::text IS NULL OR substr(stream, strpos(stream || '/', '/') + 1) = %(key)s)
ORDER BY position LIMIT %(limit)s
