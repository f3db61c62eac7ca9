UPDATE onefold.http_generations SET retired_at = clock_timestamp()
WHERE retired_at IS NULL AND ends_at < %(now)s - make_interval(secs => %(retention)s)
RETURNING name
