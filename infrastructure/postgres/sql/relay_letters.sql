SELECT h.id, h.relay, h.key, h.message_id, h.type, h.cause, h.attempts, h.held_at, h.asked_at, h.resolved_at,
    h.resolution, h.resolved_by, h.position,
    (SELECT count(*) FROM onefold.held_messages w
        WHERE w.relay = h.relay AND w.segment = h.segment AND w.key = h.key AND w.resolved_at IS NULL
            AND w.position > h.position) AS behind
FROM onefold.held_messages h
WHERE h.cause IS NOT NULL AND (%(resolved)s OR h.resolved_at IS NULL)
    AND (%(ids)s::bigint[] IS NULL OR h.id = ANY (%(ids)s))
    AND (%(relay)s::text IS NULL OR h.relay = %(relay)s)
ORDER BY h.id LIMIT %(limit)s
