SELECT stream, version, occurred_at, recorded_at FROM {log} WHERE position = %(after)s
