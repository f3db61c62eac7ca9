UPDATE onefold.rebuilds SET phase = %(phase)s, upto = %(upto)s, failure = NULL, updated_at = clock_timestamp()
WHERE projection = %(projection)s
