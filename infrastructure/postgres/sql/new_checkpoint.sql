INSERT INTO onefold.checkpoints (projection, segment, log, fingerprint) VALUES (%s, %s, %s, %s)
ON CONFLICT (projection, segment) DO NOTHING
