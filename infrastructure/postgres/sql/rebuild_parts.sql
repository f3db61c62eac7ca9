SELECT part, from_stream, before_stream, done FROM onefold.rebuild_parts WHERE projection = %(projection)s ORDER BY part
