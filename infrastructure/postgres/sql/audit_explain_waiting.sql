SELECT 'parked' AS kind, p.id, c.consumer, p.message_id, p.type, p.sequence, p.version, p.reason, p.parked_at, NULL AS resolution
FROM onefold.parked p JOIN onefold.consumers c ON c.id = p.consumer WHERE p.sequence = ANY (%(sequences)s::text[])
UNION ALL
SELECT 'dead letter', d.id, c.consumer, d.message_id, d.type, d.sequence, d.version, d.outcome || ': ' || d.cause, d.dead_at,
    d.resolution
FROM onefold.dead_letters d JOIN onefold.consumers c ON c.id = d.consumer WHERE d.sequence = ANY (%(sequences)s::text[])
ORDER BY 3, 7, 9, 2 LIMIT %(limit)s
