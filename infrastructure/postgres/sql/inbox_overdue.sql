SELECT DISTINCT p.sequence
FROM onefold.parked p JOIN onefold.consumers c ON c.id = p.consumer
WHERE p.consumer = %s AND p.parked_at < clock_timestamp() - c.gap_deadline AND NOT EXISTS (
    SELECT FROM onefold.dead_letters d
    WHERE d.consumer = p.consumer AND d.sequence = p.sequence AND d.version < p.version AND d.resolved_at IS NULL
        -- One that the sequence is past is nothing to wait for.
        AND d.version > coalesce((
            SELECT s.version FROM onefold.sequences s WHERE s.consumer = p.consumer AND s.sequence = p.sequence
        ), 0)
)
LIMIT 1000
