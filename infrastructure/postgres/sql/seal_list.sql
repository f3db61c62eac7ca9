SELECT log, number, first_position, last_position, events, size, root, marks_hash, previous, sealed_at, hash, public_key,
    signature, peaks
FROM onefold.seals WHERE log = %(log)s AND number > %(after)s AND number <= %(upto)s ORDER BY number
