DELETE FROM onefold.effects WHERE id IN (
    SELECT id FROM onefold.effects WHERE remove_at <= clock_timestamp()
    ORDER BY remove_at LIMIT %s FOR UPDATE SKIP LOCKED
)
