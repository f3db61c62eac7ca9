SELECT count(*)
FROM onefold.dead_letters d JOIN onefold.consumers c ON c.id = d.consumer
WHERE d.resolved_at IS NULL
    AND (%(consumers)s::text[] IS NULL OR c.consumer = ANY (%(consumers)s))
    AND (%(sequence)s::text IS NULL OR d.sequence = %(sequence)s)
