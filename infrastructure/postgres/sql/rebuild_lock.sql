SELECT pg_try_advisory_lock(hashtextextended('onefold rebuild ' || %(projection)s, 0))
