WITH before AS (
    DELETE FROM onefold.relays WHERE relay = %(relay)s
    RETURNING channel, source, position, published, token
), common AS (
    SELECT channel, source, min(position) AS position, sum(published)::bigint AS published, max(token) AS token
    FROM before GROUP BY channel, source
)
INSERT INTO onefold.relays (relay, segment, segments, channel, source, position, published, token)
SELECT %(relay)s, segment, %(segments)s, channel, source, position,
    CASE WHEN segment = 0 THEN published ELSE 0 END, token + 1
FROM common CROSS JOIN generate_series(0, %(segments)s - 1) AS segment
