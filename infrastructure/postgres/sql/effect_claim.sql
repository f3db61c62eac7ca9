WITH picked AS (
    SELECT next.id, next.first_try_at, given.lease
    FROM unnest(%(effects)s::text[], %(leases)s::double precision[]) AS given (effect, lease)
    CROSS JOIN LATERAL (
        SELECT e.id, e.due_at, e.first_try_at FROM onefold.effects e
        WHERE e.effect = given.effect AND e.due_at <= clock_timestamp()
        ORDER BY e.due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    ) next
    ORDER BY next.due_at LIMIT 1
)
UPDATE onefold.effects e SET attempts = e.attempts + 1, token = e.token + 1, owner = %(owner)s,
    first_try_at = coalesce(e.first_try_at, clock_timestamp()),
    due_at = clock_timestamp() + make_interval(secs => picked.lease)
FROM picked WHERE e.id = picked.id
RETURNING e.id, e.effect, e.key, e.call, e.token, e.attempts,
    extract(epoch FROM clock_timestamp() - picked.first_try_at)::double precision AS age, e.type, e.schema_version,
    e.data::text AS data, e.stream, e.version, e.position, e.event_id, e.occurred_at, e.recorded_at,
    e.metadata::text AS metadata, e.asked_at
