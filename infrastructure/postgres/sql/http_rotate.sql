WITH ended AS (
    UPDATE onefold.http_generations SET ends_at = greatest(%(now)s, clock_timestamp())
    WHERE generation = %(generation)s AND ends_at IS NULL
    RETURNING ends_at
)
INSERT INTO onefold.http_generations (name, generation, starts_at)
SELECT %(name)s, %(generation)s + 1, ends_at FROM ended
