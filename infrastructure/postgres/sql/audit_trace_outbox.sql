SELECT position, channel, key, id, type, written_at, causation FROM (
    SELECT o.*, attributes ->> 'causationid' AS causation, attributes ->> 'correlationid' AS correlation
    FROM onefold.outbox o CROSS JOIN LATERAL (SELECT convert_from(o.body, 'UTF8')::jsonb AS attributes) parsed
) message
WHERE id = ANY (%(ids)s::text[]) OR causation = ANY (%(ids)s::text[]) OR correlation = %(correlation)s::text
ORDER BY position LIMIT %(limit)s
