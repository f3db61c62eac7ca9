INSERT INTO onefold.held_messages AS h
    (relay, segment, position, key, keyed, message_id, type, body, headers, cause, attempts)
SELECT %(relay)s, %(segment)s, position, key, keyed, id, type, body, headers::jsonb, cause, (cause IS NOT NULL)::integer
FROM unnest(
    %(positions)s::bigint[], %(keys)s::text[], %(keyed)s::boolean[], %(ids)s::text[], %(types)s::text[], %(bodies)s::bytea[],
    %(headers)s::text[], %(causes)s::text[]
) AS given (position, key, keyed, id, type, body, headers, cause)
ON CONFLICT (relay, position) DO UPDATE
    SET cause = coalesce(excluded.cause, h.cause), attempts = h.attempts + excluded.attempts,
        asked_at = CASE WHEN excluded.cause IS NULL THEN h.asked_at END
    WHERE h.resolved_at IS NULL
