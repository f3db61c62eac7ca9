-- Events in front of the first position, and hashes of which no seal speaks.
SELECT 'event', position, stream, version FROM {log} WHERE position < 1
UNION ALL
SELECT 'hash', position, stream, version FROM {hashes} WHERE position < 1 OR position > %(last)s
ORDER BY 1, 2
