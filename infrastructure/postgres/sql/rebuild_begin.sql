INSERT INTO onefold.rebuilds (projection, fingerprint) VALUES (%(projection)s, %(fingerprint)s)
