-- Takes an event for an instance, unless it was taken before, or waits behind a dead letter of the instance.
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
    INSERT INTO onefold.process_instances AS i (process, instance, position)
    SELECT %(process)s, %(instance)s, %(position)s FROM behind WHERE letter IS NULL
    ON CONFLICT (process, instance) DO UPDATE SET position = excluded.position
    WHERE i.position < excluded.position
    RETURNING true
)
SELECT (SELECT letter FROM behind), EXISTS (SELECT FROM taken), clock_timestamp()
