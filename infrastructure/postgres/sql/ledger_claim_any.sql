SELECT key, fingerprint, first_seen FROM onefold.claim_any(%b, %b, %b, %t::timestamptz)
