INSERT INTO onefold.attempts AS a (consumer, key, attempts, error) VALUES (%s, %s, 1, %s)
ON CONFLICT (consumer, key) DO UPDATE
SET attempts = a.attempts + 1, error = excluded.error, last_at = clock_timestamp()
RETURNING attempts
