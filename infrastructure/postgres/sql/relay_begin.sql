INSERT INTO onefold.relays (relay, segment, segments, channel, source, position)
SELECT %(relay)s, segment, %(segments)s, %(channel)s, %(source)s, %(position)s
FROM generate_series(0, %(segments)s - 1) AS segment
WHERE NOT EXISTS (SELECT FROM onefold.relays WHERE relay = %(relay)s)
ON CONFLICT (relay, segment) DO NOTHING
