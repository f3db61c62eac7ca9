SELECT position, coalesce(previous, 0), version, stream, hash, checks
FROM {hashes} WHERE position >= %(first)s AND position <= %(last)s
