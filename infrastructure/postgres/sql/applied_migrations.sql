SELECT number, name, sha256, applied_at
FROM onefold.migrations
ORDER BY number
