-- Leases of requests that ended with their server and were never tried again.
DELETE FROM onefold.http_claims WHERE expires_at < %(now)s - make_interval(secs => %(retention)s)
