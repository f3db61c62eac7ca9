DELETE FROM onefold.http_claims WHERE key = %s AND token = %s
