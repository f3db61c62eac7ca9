SELECT c.relname FROM pg_class c
WHERE c.relnamespace = 'onefold'::regnamespace AND c.relkind IN ('r', 'p') AND (
    c.relname IN (SELECT 'events' UNION SELECT split_part(log, '.', 2) FROM onefold.checkpoints UNION SELECT log FROM onefold.checkpoints)
    OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'after_append')
)
ORDER BY c.relname
