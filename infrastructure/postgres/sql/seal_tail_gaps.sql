-- Events after the last seal whose predecessor is missing, or stands after them.
SELECT e.position, e.stream, e.version FROM {log} e
WHERE e.position > %(last)s AND e.version > 1 AND (
    SELECT p.position < e.position FROM {log} p WHERE p.stream = e.stream AND p.version = e.version - 1
) IS NOT TRUE
ORDER BY e.position
