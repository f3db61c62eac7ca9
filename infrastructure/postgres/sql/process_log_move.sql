UPDATE onefold.log_subscriptions
SET position = %(position)s, expires_at = clock_timestamp() + make_interval(secs => %(lease)s),
    moved_at = CASE WHEN position < %(position)s THEN clock_timestamp() ELSE moved_at END
WHERE consumer = %(consumer)s AND log = %(log)s AND token = %(token)s AND owner = %(owner)s
    AND position <= %(position)s
