SELECT d.consumer, d.outcome, d.key, d.sequence, d.version, d.body, d.headers::text, d.place, d.published_at, d.attempts
FROM onefold.dead_letters d
WHERE d.id = %s AND d.resolved_at IS NULL
FOR UPDATE
