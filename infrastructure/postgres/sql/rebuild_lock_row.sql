-- The serving version stays where it is until the transaction ends.
SELECT position, fingerprint FROM onefold.checkpoints WHERE projection = %(projection)s AND segment = 0 FOR UPDATE
