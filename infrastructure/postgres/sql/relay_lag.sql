SELECT count(*), extract(epoch FROM clock_timestamp() - min(written_at))::float8
FROM (
    SELECT o.written_at FROM onefold.outbox o JOIN onefold.relays r
        ON r.relay = %(relay)s AND r.channel = o.channel AND o.slot %% r.segments = r.segment AND o.position > r.position
    WHERE o.channel = %(channel)s AND o.position > %(position)s
    ORDER BY o.position LIMIT %(bound)s
) waiting
