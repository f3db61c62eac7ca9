UPDATE onefold.checkpoints
SET position = 0, fingerprint = %(fingerprint)s, log = %(log)s, attempts = 0, failure = NULL, updated_at = clock_timestamp()
WHERE projection = %(projection)s AND segment = %(segment)s AND token = %(token)s
