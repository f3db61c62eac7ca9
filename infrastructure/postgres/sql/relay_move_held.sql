UPDATE onefold.held_messages h SET segment = given.segment
FROM unnest(%s::text[], %s::smallint[]) AS given (key, segment)
WHERE h.relay = %s AND h.key = given.key AND h.resolved_at IS NULL
