INSERT INTO onefold.consumers AS c (consumer, ledger, ordering, retention, gap_report, gap_deadline, read_model)
VALUES (
    %(consumer)s, %(ledger)s, %(ordering)s, make_interval(secs => %(retention)s),
    make_interval(secs => %(gap_report)s), make_interval(secs => %(gap_deadline)s), %(read_model)s
)
-- Another ordering is taken until something was decided by it.
ON CONFLICT (consumer) DO UPDATE SET
    ordering = CASE
        WHEN EXISTS (SELECT FROM onefold.outcomes o WHERE o.consumer = c.id) THEN c.ordering
        ELSE excluded.ordering
    END,
    retention = excluded.retention, gap_report = excluded.gap_report, gap_deadline = excluded.gap_deadline
WHERE (c.ordering, c.retention, c.gap_report, c.gap_deadline)
    IS DISTINCT FROM (excluded.ordering, excluded.retention, excluded.gap_report, excluded.gap_deadline)
