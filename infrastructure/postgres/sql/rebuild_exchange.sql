SELECT onefold.exchange_read_model(%(projection)s, %(segment)s, %(owner)s, %(coming_owner)s, %(behind)s, %(lock_ms)s)
