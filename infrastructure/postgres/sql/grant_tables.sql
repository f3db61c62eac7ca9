-- What can be granted: tables of the product, and of what kind each is.
SELECT n.nspname, c.relname, CASE
    WHEN n.nspname <> 'onefold' THEN 'read model'
    WHEN c.relname = 'migrations' THEN 'migrations'
    WHEN bool_or(t.tgname = 'refuse_change') THEN 'log'
    WHEN bool_or(t.tgname = 'refuse_seal_change') THEN 'seals'
    WHEN bool_or(t.tgname = 'refuse_ledger_change') THEN 'ledger'
    ELSE 'state'
END
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_trigger t ON t.tgrelid = c.oid
WHERE c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
    AND n.nspname IN ('onefold', 'read', 'read_next', 'read_before')
GROUP BY n.nspname, c.relname, c.oid
ORDER BY n.nspname, c.relname
