SELECT key, fingerprint, first_seen FROM onefold.claimed_any(%b, %b)
