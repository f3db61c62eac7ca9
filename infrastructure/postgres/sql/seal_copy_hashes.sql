COPY {hashes} (position, previous, version, stream, hash, checks) FROM STDIN (FORMAT binary)
