INSERT INTO onefold.consumers AS c (consumer, ledger, ordering, retention, gap_report, gap_deadline, read_model)
VALUES (
    %(consumer)s, %(ledger)s, %(ordering)s, make_interval(secs => %(retention)s),
    make_interval(secs => %(gap_report)s), make_interval(secs => %(gap_deadline)s), %(read_model)s
)
ON CONFLICT (consumer) DO UPDATE SET ordering = excluded.ordering, retention = excluded.retention,
    gap_report = excluded.gap_report, gap_deadline = excluded.gap_deadline
WHERE (c.ordering, c.retention, c.gap_report, c.gap_deadline)
    IS DISTINCT FROM (excluded.ordering, excluded.retention, excluded.gap_report, excluded.gap_deadline)
