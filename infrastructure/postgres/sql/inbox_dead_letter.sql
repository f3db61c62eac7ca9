INSERT INTO onefold.dead_letters AS d
    (consumer, sequence, version, outcome, cause, attempts, key, fingerprint, key_text, message_id, type, body, headers,
    place, published_at, first_seen, identity)
VALUES (
    %(consumer)s, %(sequence)s, %(version)s, %(outcome)s, %(cause)s, %(attempts)s, %(key)s, %(fingerprint)s,
    %(key_text)s, %(message_id)s, %(type)s, %(body)s, %(headers)s, %(place)s, %(published_at)s,
    coalesce(
        (SELECT a.first_at FROM onefold.attempts a WHERE a.consumer = %(consumer)s AND a.key = %(key)s),
        (SELECT p.parked_at FROM onefold.parked p WHERE p.id = %(parked)s),
        clock_timestamp()
    ),
    %(identity)s
)
ON CONFLICT (consumer, identity) DO UPDATE
SET outcome = excluded.outcome, cause = excluded.cause, attempts = excluded.attempts, key = coalesce(excluded.key, d.key),
    dead_at = clock_timestamp(), resolved_at = NULL, resolution = NULL, resolved_by = NULL
-- One that an operator had put back to wait, and that has failed again; one that has claimed its key only now; and one
-- that was dealt with, and comes again as a new message.
WHERE d.resolution = 'parked' OR (d.key IS NULL AND excluded.key IS NOT NULL)
    OR (d.resolved_at IS NOT NULL AND excluded.outcome IN ('rejected', 'dead_lettered'))
