UPDATE onefold.checkpoints
SET position = %(upto)s, updated_at = clock_timestamp(), attempts = 0, failure = NULL,
    expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE projection = %(projection)s AND segment = %(segment)s AND position = %(position)s AND token = %(token)s
