SELECT p.id, c.consumer, p.sequence, p.version,
    CASE
        WHEN c.ordering <> 'delta' OR p.version IS NULL THEN p.reason
        WHEN p.version > coalesce(s.version, 0) + 1 THEN format('waits for version %%s', coalesce(s.version, 0) + 1)
        ELSE 'its turn has come'
    END AS reason,
    p.message_id, p.type, p.place, p.published_at, p.parked_at, p.reported_at, p.attempts, p.due_at, p.error
FROM onefold.parked p JOIN onefold.consumers c ON c.id = p.consumer
LEFT JOIN onefold.sequences s ON s.consumer = p.consumer AND s.sequence = p.sequence
WHERE (%(consumer)s::text IS NULL OR c.consumer = %(consumer)s)
    AND (%(sequence)s::text IS NULL OR p.sequence = %(sequence)s)
ORDER BY c.consumer, p.sequence, p.version, p.id
LIMIT %(limit)s
