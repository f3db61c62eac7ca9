SELECT projection, position, fingerprint, owner, extract(epoch FROM expires_at - clock_timestamp())::float8,
    updated_at, attempts, failure
FROM onefold.checkpoints WHERE segment = 0
