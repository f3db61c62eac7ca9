INSERT INTO onefold.http_services AS s (service, retention) VALUES (%s, make_interval(secs => %s))
ON CONFLICT (service) DO UPDATE SET retention = excluded.retention, registered_at = clock_timestamp()
WHERE s.retention <> excluded.retention
