SELECT min(position) FROM onefold.relays WHERE relay = %s
