SELECT state, fingerprint, status, headers, body, recorded_at FROM onefold.http_claim(%s, %s, %s, %s)
