INSERT INTO onefold.parked
    (consumer, sequence, version, key, fingerprint, message_id, type, reason, body, headers, place, published_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
