SELECT position, version, to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    to_char(recorded_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), event_id::text, schema_version,
    stream, type, data::text, raw, metadata::text,
    least(occurred_at, recorded_at) >= '0001-01-01 00:00:00+00'
        AND greatest(occurred_at, recorded_at) <= '9999-12-31 23:59:59.999999+00'
FROM {log}
WHERE stream = %(stream)s AND version > %(version)s AND position > %(after)s AND position <= %(upto)s
ORDER BY version LIMIT %(limit)s
