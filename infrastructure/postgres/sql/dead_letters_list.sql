SELECT d.id, c.consumer, d.outcome, d.cause, d.attempts, d.sequence, d.version, d.key_text, d.message_id, d.type,
    d.place, d.published_at, d.first_seen, d.dead_at, d.resolved_at, d.resolution, d.resolved_by,
    (
        SELECT count(*) FROM onefold.parked p
        WHERE p.consumer = d.consumer AND p.sequence = d.sequence AND d.resolved_at IS NULL AND CASE c.ordering
            -- Its lifecycle may wait for any that can still be applied.
            WHEN 'unordered' THEN d.outcome <> 'key_conflict'
            -- One that the sequence is past is nothing to wait for.
            ELSE d.version > coalesce(s.version, 0) AND (p.version > d.version OR p.version IS NULL)
        END
    ) AS behind
FROM onefold.dead_letters d JOIN onefold.consumers c ON c.id = d.consumer
LEFT JOIN onefold.sequences s ON s.consumer = d.consumer AND s.sequence = d.sequence
WHERE (%(consumer)s::text IS NULL OR c.consumer = %(consumer)s)
    AND (%(sequence)s::text IS NULL OR d.sequence = %(sequence)s)
    AND (%(ids)s::bigint[] IS NULL OR d.id = ANY (%(ids)s))
    AND (%(resolved)s OR d.resolved_at IS NULL)
ORDER BY c.consumer, d.sequence NULLS FIRST, d.version NULLS FIRST, d.id
LIMIT %(limit)s
