SELECT position, fingerprint, failure FROM onefold.checkpoints WHERE projection = %s AND segment = 0
