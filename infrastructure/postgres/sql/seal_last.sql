SELECT log, number, first_position, last_position, events, size, root, marks_hash, previous, sealed_at, hash, public_key,
    signature, peaks
FROM onefold.seals WHERE log = %(log)s ORDER BY number DESC LIMIT 1
