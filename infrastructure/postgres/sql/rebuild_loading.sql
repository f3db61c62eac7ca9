UPDATE onefold.rebuilds SET upto = %(upto)s, total = %(total)s, updated_at = clock_timestamp()
WHERE projection = %(projection)s
