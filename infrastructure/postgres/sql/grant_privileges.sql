-- What a role may do with tables and sequences of the database, by itself, by a role that it is in, or as everybody.
SELECT n.nspname, c.relname, array_remove(ARRAY[
    CASE WHEN c.relkind <> 'S' AND has_any_column_privilege(%(role)s, c.oid, 'SELECT') THEN 'SELECT' END,
    CASE WHEN c.relkind <> 'S' AND has_any_column_privilege(%(role)s, c.oid, 'INSERT') THEN 'INSERT' END,
    CASE WHEN c.relkind <> 'S' AND has_any_column_privilege(%(role)s, c.oid, 'UPDATE') THEN 'UPDATE' END,
    CASE WHEN c.relkind <> 'S' AND has_table_privilege(%(role)s, c.oid, 'DELETE') THEN 'DELETE' END,
    CASE WHEN c.relkind <> 'S' AND has_table_privilege(%(role)s, c.oid, 'TRUNCATE') THEN 'TRUNCATE' END,
    CASE WHEN c.relkind <> 'S' AND has_table_privilege(%(role)s, c.oid, 'TRIGGER') THEN 'TRIGGER' END,
    CASE WHEN c.relkind = 'S' AND has_sequence_privilege(%(role)s, c.oid, 'USAGE') THEN 'USAGE' END,
    CASE WHEN c.relkind = 'S' AND has_sequence_privilege(%(role)s, c.oid, 'UPDATE') THEN 'UPDATE' END,
    CASE WHEN pg_has_role(%(role)s, c.relowner, 'USAGE') THEN 'ownership' END
], NULL)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND n.nspname <> 'information_schema' AND NOT starts_with(n.nspname, 'pg_')
UNION ALL
SELECT n.nspname, '', ARRAY['CREATE'] FROM pg_namespace n
WHERE n.nspname <> 'information_schema' AND NOT starts_with(n.nspname, 'pg_')
    AND has_schema_privilege(%(role)s, n.oid, 'CREATE')
ORDER BY 1, 2
