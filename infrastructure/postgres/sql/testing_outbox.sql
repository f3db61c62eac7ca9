SELECT channel, key, type, convert_from(body, 'UTF8')::jsonb - ARRAY['id', 'time', 'causationid', 'traceparent', 'tracestate'] AS message
FROM onefold.outbox
