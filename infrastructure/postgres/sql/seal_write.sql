INSERT INTO onefold.seals (log, number, first_position, last_position, events, size, root, marks_hash, previous, sealed_at,
    hash, public_key, signature, peaks, marks)
VALUES (%(log)s, %(number)s, %(first)s, %(last)s, %(events)s, %(size)s, %(root)s, %(marks_hash)s, %(previous)s,
    %(sealed_at)s, %(hash)s, %(public_key)s, %(signature)s, %(peaks)s, %(marks)s)
