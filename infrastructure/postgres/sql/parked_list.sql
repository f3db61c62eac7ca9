SELECT p.id, c.consumer, p.sequence, p.version, p.reason, p.message_id, p.type, p.place, p.published_at, p.parked_at,
    p.reported_at, p.attempts, p.due_at, p.error
FROM onefold.parked p JOIN onefold.consumers c ON c.id = p.consumer
WHERE (%(consumer)s::text IS NULL OR c.consumer = %(consumer)s)
    AND (%(sequence)s::text IS NULL OR p.sequence = %(sequence)s)
ORDER BY c.consumer, p.sequence, p.version, p.id
LIMIT %(limit)s
