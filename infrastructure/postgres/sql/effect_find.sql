SELECT id, effect, key, call::text AS call, attempts, asked_at, due_at, done_at, result, dead_at, outcome, error
FROM onefold.effects WHERE call = %s AND outcome IS DISTINCT FROM 'key_conflict'
