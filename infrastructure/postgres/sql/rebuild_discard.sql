DELETE FROM onefold.rebuilds WHERE projection = %(projection)s
