-- "OF", a number for the purpose, and the table's oid.
SELECT pg_try_advisory_lock((x'4f460003'::bigint << 32) | to_regclass(format('onefold.%%I', %(log)s::text))::oid::bigint)
