-- Where a range ends that begins after a position and holds so many events, and how many there are.
SELECT max(position), count(*) FROM (
    SELECT position FROM {log} WHERE position > %(after)s AND position <= %(upto)s ORDER BY position LIMIT %(limit)s
) range
