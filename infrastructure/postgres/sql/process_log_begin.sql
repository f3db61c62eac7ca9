-- Begins before the first event that was recorded since then.
INSERT INTO onefold.log_subscriptions (consumer, log, position)
VALUES (%(consumer)s, %(log)s, CASE WHEN %(head)s THEN coalesce(
    (SELECT position FROM {log} WHERE recorded_at < %(since)s ORDER BY position DESC LIMIT 1), 0
) ELSE 0 END)
ON CONFLICT (consumer, log) DO NOTHING
