UPDATE onefold.dead_letters SET resolved_at = clock_timestamp(), resolution = %s, resolved_by = %s WHERE id = %s
