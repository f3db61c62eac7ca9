WITH chosen AS (
    SELECT p.id,
        sum(octet_length(p.body)) OVER (ORDER BY p.sequence, p.version, p.id) - octet_length(p.body) AS bytes_before
    FROM onefold.parked p
    WHERE p.consumer = %(consumer)s AND p.sequence = ANY (%(sequences)s::text[])
    ORDER BY p.sequence, p.version, p.id
    LIMIT %(limit)s
)
SELECT p.id, p.sequence, p.version, p.key, p.fingerprint, p.body, p.headers::text, p.place, p.published_at, p.attempts,
    p.due_at > clock_timestamp() AS held, p.error, p.reason,
    p.parked_at < clock_timestamp() - c.gap_deadline AND NOT EXISTS (
        SELECT FROM onefold.dead_letters d
        WHERE d.consumer = p.consumer AND d.sequence = p.sequence AND d.version < p.version AND d.resolved_at IS NULL
            -- One that the sequence is past is nothing to wait for.
            AND d.version > coalesce((
                SELECT s.version FROM onefold.sequences s WHERE s.consumer = p.consumer AND s.sequence = p.sequence
            ), 0)
    ) AS overdue
FROM chosen JOIN onefold.parked p ON p.id = chosen.id JOIN onefold.consumers c ON c.id = p.consumer
WHERE chosen.bytes_before < %(bytes)s
ORDER BY p.sequence, p.version, p.id
