-- The hash of the previous event of the stream, the event's own, and how many events stand before it in its range.
SELECT p.hash, h.hash, (
    SELECT count(*) FROM {hashes} e
    WHERE e.position < h.position AND e.position >= (
        SELECT first_position FROM onefold.seals s
        WHERE s.log = %(log)s AND s.first_position <= h.position AND s.last_position >= h.position
    )
)
FROM {hashes} h LEFT JOIN {hashes} p ON p.position = h.previous
WHERE h.position = %(position)s
