WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%s::text[], %s::text[], %s::uuid[], %s::uuid[], %s::text[], %s::integer[], %s::text[],
        %s::text[], %s::bigint[], %s::bigint[], %s::uuid[], %s::timestamptz[], %s::timestamptz[], %s::text[],
        %s::text[])
        WITH ORDINALITY AS g (effect, key, call, fingerprint, type, schema_version, data, stream, version, position,
            event_id, occurred_at, recorded_at, metadata, conflict, number)
), claimed AS (
    INSERT INTO onefold.effect_keys (call, fingerprint)
    SELECT call, fingerprint FROM given WHERE fingerprint IS NOT NULL AND conflict IS NULL ORDER BY call
    ON CONFLICT DO NOTHING
    RETURNING call
)
INSERT INTO onefold.effects (effect, key, call, type, schema_version, data, stream, version, position, event_id,
    occurred_at, recorded_at, metadata, due_at, dead_at, outcome, error)
SELECT effect, key, call, type, schema_version, data::jsonb, stream, version, position, event_id, occurred_at,
    recorded_at, metadata::jsonb, CASE WHEN conflict IS NULL THEN clock_timestamp() END,
    CASE WHEN conflict IS NOT NULL THEN clock_timestamp() END,
    CASE WHEN conflict IS NOT NULL THEN 'key_conflict' END, conflict
FROM given g
WHERE g.fingerprint IS NULL OR g.conflict IS NOT NULL OR EXISTS (SELECT FROM claimed c WHERE c.call = g.call)
ORDER BY g.number
RETURNING call
