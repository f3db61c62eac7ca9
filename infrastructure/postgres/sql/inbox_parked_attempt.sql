UPDATE onefold.parked
SET attempts = %s, error = %s, due_at = clock_timestamp() + make_interval(secs => %s)
WHERE id = %s
