INSERT INTO onefold.sequences (consumer, sequence, version, state, parked)
SELECT %b, g.sequence, g.version, g.state, g.parked
FROM unnest(%b::text[], %b::bigint[], %b::text[], %b::integer[]) AS g (sequence, version, state, parked)
ORDER BY g.sequence
ON CONFLICT DO NOTHING
