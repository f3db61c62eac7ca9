SELECT extract(epoch FROM min(next.due_at) - clock_timestamp())::double precision
FROM unnest(%s::text[]) AS given (effect)
CROSS JOIN LATERAL (
    SELECT e.due_at FROM onefold.effects e
    WHERE e.effect = given.effect AND e.due_at IS NOT NULL ORDER BY e.due_at LIMIT 1
) next
