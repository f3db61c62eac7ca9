SELECT fingerprint, phase, upto, total FROM onefold.rebuilds WHERE projection = %(projection)s
