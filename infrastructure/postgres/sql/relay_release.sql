UPDATE onefold.relays SET owner = NULL, expires_at = NULL
WHERE relay = %s AND segment = %s AND token = %s
