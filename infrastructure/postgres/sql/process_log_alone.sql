-- Whoever reads holds this lock as long as its session lives: where it is free, the last one is gone.
SELECT pg_try_advisory_lock(hashtextextended(format('log %%s of %%s', %(log)s::text, %(consumer)s::text), 1330004486))
