SELECT c.consumer, s.sequence, s.version, s.state, s.parked
FROM onefold.sequences s JOIN onefold.consumers c ON c.id = s.consumer
WHERE s.sequence = ANY (%(sequences)s::text[])
ORDER BY c.consumer, s.sequence
