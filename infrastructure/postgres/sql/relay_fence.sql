SELECT FROM onefold.relays WHERE relay = %s AND segment = %s AND token = %s FOR NO KEY UPDATE
