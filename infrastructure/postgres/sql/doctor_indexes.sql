SELECT i.indexrelid::regclass::text
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE NOT i.indisvalid AND c.relnamespace::regnamespace::text IN ('onefold', 'read')
    -- One of these is being built, and will be valid.
    AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid)
ORDER BY 1
