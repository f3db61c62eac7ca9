UPDATE onefold.dead_letters SET attempts = attempts + %s, cause = %s WHERE id = %s AND resolved_at IS NULL
