WITH drawn AS MATERIALIZED (SELECT nextval('onefold.worker_numbers')::integer AS number)
SELECT number, pg_try_advisory_lock(x'4f460002'::integer, number) FROM drawn
