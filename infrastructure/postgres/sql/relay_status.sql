SELECT r.relay, r.channel, r.source, r.segments, min(r.position), sum(r.published)::bigint,
    count(*) FILTER (WHERE r.owner IS NOT NULL AND r.expires_at > clock_timestamp()),
    count(DISTINCT r.owner) FILTER (WHERE r.expires_at > clock_timestamp()),
    (SELECT count(*) FROM onefold.held_messages h
        WHERE h.relay = r.relay AND h.resolved_at IS NULL AND h.cause IS NOT NULL),
    (SELECT count(*) FROM onefold.held_messages h
        WHERE h.relay = r.relay AND h.resolved_at IS NULL AND h.cause IS NULL)
FROM onefold.relays r
GROUP BY r.relay, r.channel, r.source, r.segments ORDER BY r.relay
