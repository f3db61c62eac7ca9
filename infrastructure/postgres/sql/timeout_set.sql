INSERT INTO onefold.timeouts AS t (process, instance, name, id, due_at)
VALUES (%(process)s, %(instance)s, %(name)s, %(id)s, %(due)s)
ON CONFLICT (process, instance, name) DO UPDATE
SET id = excluded.id, due_at = excluded.due_at, set_at = clock_timestamp(), settled = false
