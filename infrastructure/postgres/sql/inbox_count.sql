INSERT INTO onefold.outcomes AS o (consumer, outcome, slot, count)
SELECT %b, u.outcome, %b, u.count FROM unnest(%b::text[], %b::bigint[]) AS u (outcome, count) ORDER BY u.outcome
ON CONFLICT (consumer, outcome, slot) DO UPDATE SET count = o.count + excluded.count, last_at = clock_timestamp()
