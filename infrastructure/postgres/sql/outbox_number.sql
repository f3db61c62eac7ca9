INSERT INTO onefold.outbox_numbers AS n (channel, key, last)
SELECT channel, key, count FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS given (channel, key, count)
ORDER BY channel, key
ON CONFLICT (channel, key) DO UPDATE SET last = n.last + excluded.last
RETURNING channel, key, last
