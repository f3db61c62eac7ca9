UPDATE onefold.rebuild_parts
SET from_stream = %(from_stream)s, events = events + %(events)s, done = %(done)s
WHERE projection = %(projection)s AND part = %(part)s
