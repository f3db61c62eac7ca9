SELECT pg_current_xact_id()::text
FROM pg_advisory_xact_lock((x'4f460002'::bigint << 32) | (hashtextextended(%b, 0) & 4294967295))
