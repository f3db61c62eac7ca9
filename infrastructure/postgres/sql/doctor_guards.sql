SELECT c.relname, g.name
FROM pg_class c
CROSS JOIN (VALUES ('before_append'), ('after_append'), ('refuse_change')) AS g (name)
LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = g.name AND t.tgenabled = 'A'
WHERE c.relnamespace = 'onefold'::regnamespace AND c.relname = ANY (%s::text[]) AND t.oid IS NULL
ORDER BY c.relname, g.name
