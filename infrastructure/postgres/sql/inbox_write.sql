WITH given AS (
    SELECT * FROM unnest(%b::text[], %b::bigint[], %b::text[], %b::integer[]) AS g (sequence, version, state, parked)
), counted AS (
    INSERT INTO onefold.outcomes AS o (consumer, outcome, slot, count)
    SELECT %b, u.outcome, %b, u.count FROM unnest(%b::text[], %b::bigint[]) AS u (outcome, count) ORDER BY u.outcome
    ON CONFLICT (consumer, outcome, slot) DO UPDATE SET count = o.count + excluded.count, last_at = clock_timestamp()
), changed AS (
    UPDATE onefold.sequences s SET version = g.version, state = g.state, parked = s.parked + g.parked
    FROM given g WHERE s.consumer = %b AND s.sequence = g.sequence
    RETURNING s.sequence
), cleared AS (
    UPDATE onefold.in_hand SET keys = ARRAY[]::uuid[], open = false WHERE worker = %b
)
-- As it was before this statement.
SELECT h.open FROM onefold.in_hand h WHERE h.worker = %b
