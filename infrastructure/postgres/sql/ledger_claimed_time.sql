SELECT key, fingerprint, first_seen FROM onefold.claimed_by_time(%b, %b)
