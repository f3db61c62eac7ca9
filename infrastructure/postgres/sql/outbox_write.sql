INSERT INTO onefold.outbox (channel, key, slot, id, type, body, headers)
SELECT channel, key, slot, id, type, body, headers::jsonb
FROM unnest(%s::text[], %s::text[], %s::smallint[], %s::text[], %s::text[], %b::bytea[], %s::text[])
    WITH ORDINALITY AS given (channel, key, slot, id, type, body, headers, number)
ORDER BY number
