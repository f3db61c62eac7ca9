SELECT s.sequence, s.version, s.state, s.parked
FROM onefold.sequences s
WHERE s.consumer = %b AND s.sequence = ANY (%b::text[])
ORDER BY s.sequence
FOR NO KEY UPDATE OF s SKIP LOCKED
