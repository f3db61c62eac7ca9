UPDATE onefold.relays
SET position = %(upto)s, published = published + %(published)s, updated_at = clock_timestamp(),
    expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE relay = %(relay)s AND segment = %(segment)s AND token = %(token)s AND position = %(position)s
    AND %(upto)s >= position
