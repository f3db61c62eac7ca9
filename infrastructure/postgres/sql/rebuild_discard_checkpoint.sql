DELETE FROM onefold.checkpoints WHERE projection = %(projection)s AND segment = -1
