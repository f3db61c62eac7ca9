SELECT h.stream, h.version, h.position FROM unnest(%(streams)s::text[], %(versions)s::bigint[]) AS u (stream, version)
JOIN {hashes} h ON h.stream = u.stream AND h.version = u.version
