-- Where a range ends that begins after a position: holes up to `settled` are closed, after that there must be none.
SELECT max(position) FROM (
    SELECT position, count(*) FILTER (WHERE position > %(settled)s) OVER (ORDER BY position) AS number
    FROM {log} WHERE position > %(after)s AND position <= %(target)s ORDER BY position LIMIT %(limit)s
) range
WHERE position - %(settled)s = number OR position <= %(settled)s
