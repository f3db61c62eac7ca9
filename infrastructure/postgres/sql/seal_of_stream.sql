SELECT position FROM {log} WHERE stream = %(stream)s
UNION
SELECT position FROM {hashes} WHERE stream = %(stream)s
ORDER BY 1
