SELECT key, fingerprint, first_seen FROM onefold.claim_by_time(%b, %b, %b)
