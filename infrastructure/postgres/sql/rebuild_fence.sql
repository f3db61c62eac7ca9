SELECT FROM onefold.checkpoints
WHERE projection = %(projection)s AND segment = -1 AND token = %(token)s AND owner = %(owner)s FOR SHARE
