SELECT
    coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
    (SELECT extract(epoch FROM max(retention))::double precision FROM onefold.http_services) AS retention,
    g.generation, g.name, g.starts_at
FROM onefold.http_generations g WHERE g.ends_at IS NULL
