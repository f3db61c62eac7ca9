SELECT DISTINCT p.sequence
FROM onefold.parked p JOIN onefold.sequences s ON s.consumer = p.consumer AND s.sequence = p.sequence
WHERE p.consumer = %s AND p.due_at <= clock_timestamp() AND (p.attempts > 0 OR p.version <= s.version + 1)
LIMIT 1000
