SELECT count(*), coalesce(min(position), 0), EXISTS (
    SELECT FROM onefold.held_messages h
    WHERE h.relay = %(relay)s AND h.resolved_at IS NULL AND (h.asked_at IS NOT NULL OR (h.cause IS NULL AND NOT EXISTS (
        SELECT FROM onefold.held_messages f
        WHERE f.relay = h.relay AND f.segment = h.segment AND f.key = h.key AND f.resolved_at IS NULL
            AND f.position < h.position
    )))
)
FROM onefold.relays WHERE relay = %(relay)s
