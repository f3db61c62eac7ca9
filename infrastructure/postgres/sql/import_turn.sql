SELECT pg_advisory_xact_lock((x'4f460002'::bigint << 32) | (hashtextextended(%b, 0) & 4294967295))
