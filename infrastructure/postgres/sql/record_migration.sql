INSERT INTO onefold.migrations (number, name, sha256)
VALUES (%s, %s, %s)
