SELECT u.stream, u.version, e.position, h.hash
FROM unnest(%(streams)s::text[], %(versions)s::bigint[]) AS u (stream, version)
JOIN {log} e ON e.stream = u.stream AND e.version = u.version
JOIN {hashes} h ON h.position = e.position
