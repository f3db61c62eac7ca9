SELECT position FROM onefold.relays WHERE relay = %s AND segment = %s AND token = %s
