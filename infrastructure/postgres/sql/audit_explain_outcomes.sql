SELECT c.consumer, o.outcome, sum(o.count)::bigint
FROM onefold.outcomes o JOIN onefold.consumers c ON c.id = o.consumer
WHERE c.consumer = ANY (%(consumers)s::text[])
GROUP BY c.consumer, o.outcome ORDER BY c.consumer, o.outcome
