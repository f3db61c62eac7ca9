SELECT d.id, c.consumer, d.outcome, d.cause, d.attempts, d.sequence, d.version, d.key_text, d.message_id, d.type,
    d.place, d.published_at, d.first_seen, d.dead_at, d.resolved_at, d.resolution, d.resolved_by,
    (
        SELECT count(*) FROM onefold.parked p
        WHERE p.consumer = d.consumer AND p.sequence = d.sequence AND d.resolved_at IS NULL
    ) AS behind
FROM onefold.dead_letters d JOIN onefold.consumers c ON c.id = d.consumer
WHERE (%(consumer)s::text IS NULL OR c.consumer = %(consumer)s)
    AND (%(sequence)s::text IS NULL OR d.sequence = %(sequence)s)
    AND (%(ids)s::bigint[] IS NULL OR d.id = ANY (%(ids)s))
    AND (%(resolved)s OR d.resolved_at IS NULL)
ORDER BY c.consumer, d.sequence NULLS FIRST, d.version NULLS FIRST, d.id
LIMIT %(limit)s
