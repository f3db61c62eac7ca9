SELECT c.relname, i.indisvalid, pg_relation_size(c.oid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %(log)s::regclass AND starts_with(c.relname, 'search_')
ORDER BY c.relname
