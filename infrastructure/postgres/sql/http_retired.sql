-- The retired generations that are still there: attached, halfway detached, or detached (null).
SELECT p.name, 'http', i.inhdetachpending
FROM onefold.http_generations p
JOIN pg_class c ON c.relname = p.name AND c.relnamespace = 'onefold'::regnamespace AND c.relkind = 'r'
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE p.retired_at IS NOT NULL
ORDER BY coalesce(i.inhdetachpending, false) DESC, p.ends_at
