-- The hashes of a range in one value: position, previous (0 for none) and hash of each, 48 bytes.
SELECT string_agg(int8send(position) || int8send(coalesce(previous, 0)) || hash, ''::bytea ORDER BY position)
FROM {hashes} WHERE position >= %(first)s AND position <= %(last)s
