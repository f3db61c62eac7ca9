SELECT p.process,
    (SELECT count(*) FROM (SELECT FROM onefold.process_instances i WHERE i.process = p.process LIMIT %(bound)s) i),
    (SELECT count(*) FROM (
        SELECT FROM onefold.timeouts t WHERE t.process = p.process AND NOT t.settled LIMIT %(bound)s
    ) t),
    (SELECT count(*) FROM (
        SELECT FROM onefold.timeouts t
        WHERE t.process = p.process AND NOT t.settled AND t.due_at <= clock_timestamp() LIMIT %(bound)s
    ) t),
    (SELECT min(t.due_at) FROM onefold.timeouts t WHERE t.process = p.process AND NOT t.settled)
FROM unnest(%(processes)s::text[]) WITH ORDINALITY AS p (process, turn)
ORDER BY p.turn
