SELECT s.stream, coalesce((SELECT max(l.version) FROM {log} l WHERE l.stream = s.stream), 0)
FROM unnest(%b::text[]) AS s (stream)
