SELECT (SELECT count(*) FROM onefold.relays WHERE relay = %(relay)s), count(*), count(*) FILTER (WHERE owner < %(owner)s)
FROM onefold.relay_members
WHERE relay = %(relay)s AND seen_at > clock_timestamp() - make_interval(secs => %(lease)s)
