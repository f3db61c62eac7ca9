INSERT INTO onefold.rebuild_parts (projection, part, from_stream, before_stream)
VALUES (%(projection)s, %(part)s, %(from_stream)s, %(before_stream)s)
