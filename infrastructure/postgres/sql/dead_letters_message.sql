SELECT body, headers::text FROM onefold.dead_letters WHERE id = %s
