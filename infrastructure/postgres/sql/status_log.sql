SELECT coalesce((SELECT max(position) FROM {log}), 0),
    (SELECT count(*) FROM (SELECT FROM {log} LIMIT %(bound)s) events),
    (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = %(log)s::regclass),
    onefold.append_lock_key(%(log)s::regclass)
