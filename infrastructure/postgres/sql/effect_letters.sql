SELECT id, effect, outcome, coalesce(error, '') AS cause, attempts, key, call::text AS call, type, stream, version,
    asked_at, first_try_at, dead_at, resolution, resolved_by
FROM onefold.effects
WHERE dead_at IS NOT NULL AND (%(resolved)s OR resolution IS NULL)
    AND (%(effect)s::text IS NULL OR effect = %(effect)s)
    AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
ORDER BY effect, id
LIMIT %(limit)s
