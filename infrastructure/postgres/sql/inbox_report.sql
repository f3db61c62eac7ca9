WITH late AS (
    UPDATE onefold.parked p SET reported_at = clock_timestamp()
    FROM onefold.consumers c
    WHERE p.consumer = %s AND c.id = p.consumer AND p.reported_at IS NULL
        AND p.parked_at < clock_timestamp() - c.gap_report
    RETURNING p.sequence, p.version, p.reason, p.parked_at
)
SELECT sequence, count(*), min(version), min(parked_at), min(reason) FROM late GROUP BY sequence ORDER BY sequence
