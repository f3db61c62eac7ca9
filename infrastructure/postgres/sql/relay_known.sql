SELECT segments, channel, source, count(*) FROM onefold.relays WHERE relay = %s GROUP BY segments, channel, source
