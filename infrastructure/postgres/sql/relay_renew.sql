UPDATE onefold.relays r SET expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
FROM unnest(%(segments)s::smallint[], %(tokens)s::bigint[]) AS mine (segment, token)
WHERE r.relay = %(relay)s AND r.owner = %(owner)s AND r.segment = mine.segment AND r.token = mine.token
RETURNING r.segment
