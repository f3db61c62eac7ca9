SELECT c.ordering, s.version FROM onefold.consumers c
LEFT JOIN LATERAL (
    SELECT q.version FROM onefold.sequences q WHERE q.consumer = c.id AND q.sequence = %s FOR NO KEY UPDATE
) s ON true
WHERE c.id = %s
