WITH gone AS (
    DELETE FROM onefold.relay_members
    WHERE relay = %(relay)s AND (owner = %(owner)s OR seen_at < clock_timestamp() - interval '1 hour')
)
UPDATE onefold.relays SET owner = NULL, expires_at = NULL WHERE relay = %(relay)s AND owner = %(owner)s
