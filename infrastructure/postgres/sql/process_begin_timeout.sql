-- Takes a timeout of an instance, unless it was forgotten or set anew, or waits behind a dead letter of the instance.
WITH behind AS (
    SELECT min(d.id) AS letter
    FROM onefold.dead_letters d JOIN onefold.consumers c ON c.id = d.consumer
    WHERE c.consumer = %(process)s AND d.sequence = %(instance)s AND d.resolved_at IS NULL
        AND d.outcome IN ('dead_lettered', 'rejected') AND d.message_id <> %(message)s
        AND d.id < coalesce((
            SELECT min(m.id) FROM onefold.dead_letters m
            WHERE m.consumer = d.consumer AND m.sequence = d.sequence AND m.resolved_at IS NULL
                AND m.message_id = %(message)s
        ), 9223372036854775807)
), taken AS (
    DELETE FROM onefold.timeouts t USING behind
    WHERE t.id = %(message)s::uuid AND t.process = %(process)s AND t.instance = %(instance)s AND behind.letter IS NULL
    RETURNING true
)
SELECT (SELECT letter FROM behind), EXISTS (SELECT FROM taken), clock_timestamp()
