SELECT string_agg(hash, ''::bytea ORDER BY position) FROM {hashes} WHERE position >= %(first)s AND position <= %(last)s
