UPDATE onefold.relays SET published = published + %s WHERE relay = %s AND segment = %s AND token = %s
