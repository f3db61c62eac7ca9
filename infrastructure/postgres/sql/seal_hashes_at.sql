SELECT position, hash FROM {hashes} WHERE position = ANY (%(positions)s::bigint[])
