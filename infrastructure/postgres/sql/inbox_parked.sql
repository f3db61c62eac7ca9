SELECT p.id, p.sequence, p.version, p.key, p.fingerprint, p.body, p.headers::text, p.place, p.published_at, p.attempts,
    p.due_at > clock_timestamp() AS held, p.error, p.reason,
    p.parked_at < clock_timestamp() - c.gap_deadline AND NOT EXISTS (
        SELECT FROM onefold.dead_letters d
        WHERE d.consumer = p.consumer AND d.sequence = p.sequence AND d.version < p.version AND d.resolved_at IS NULL
    ) AS overdue
FROM onefold.parked p JOIN onefold.consumers c ON c.id = p.consumer
WHERE p.consumer = %s AND p.sequence = ANY (%s::text[])
ORDER BY p.sequence, p.version, p.id
LIMIT %s
