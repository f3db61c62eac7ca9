DELETE FROM onefold.outbox o USING (
    SELECT o.position FROM (
        SELECT channel, min(position) AS done FROM onefold.relays WHERE source = 'outbox' GROUP BY channel
    ) r CROSS JOIN LATERAL (
        SELECT position FROM onefold.outbox
        WHERE channel = r.channel AND position <= r.done
            AND written_at < clock_timestamp() - make_interval(secs => %(keep)s)
        ORDER BY position LIMIT %(slice)s
    ) o
    LIMIT %(slice)s
) old
WHERE o.position = old.position
