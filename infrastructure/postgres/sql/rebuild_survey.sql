-- What the bulk will find: the types, where each stands first, and between which categories its streams lie.
SELECT type, count(*), min(position), min(category), max(category), bool_or(category = stream)
FROM (SELECT type, position, stream, split_part(stream, '/', 1) AS category FROM {log} WHERE position <= %(upto)s) found
GROUP BY type
