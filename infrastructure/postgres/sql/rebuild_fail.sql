UPDATE onefold.rebuilds SET failure = %(failure)s, updated_at = clock_timestamp() WHERE projection = %(projection)s
