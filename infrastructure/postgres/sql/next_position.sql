SELECT position FROM {log} WHERE position > %b ORDER BY position LIMIT 1
