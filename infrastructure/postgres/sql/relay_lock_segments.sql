SELECT position, owner IS NOT NULL AND expires_at > clock_timestamp() FROM onefold.relays
WHERE relay = %s FOR UPDATE
