SELECT pg_advisory_unlock((x'4f460003'::bigint << 32) | to_regclass(format('onefold.%%I', %(log)s::text))::oid::bigint)
