SELECT
    (SELECT count(*) FROM (SELECT FROM {log} WHERE position > %(after)s LIMIT %(bound)s) beyond),
    (SELECT extract(epoch FROM clock_timestamp() - min(recorded_at))::float8
     FROM (SELECT recorded_at FROM {log} WHERE position > %(after)s ORDER BY position LIMIT 1000) oldest)
