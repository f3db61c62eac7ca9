SELECT id, instance, name, due_at FROM onefold.timeouts
WHERE process = %s AND NOT settled AND due_at <= clock_timestamp() AND id <> ALL (%s)
ORDER BY due_at, id LIMIT %s
