SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attname IS NOT NULL)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN (
    SELECT a.attrelid, a.attnum, a.attname
    FROM pg_attribute a
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''
    WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = ''
        -- What the database draws is another value in each run.
        AND COALESCE(pg_get_expr(d.adbin, d.adrelid), '')
            !~* 'nextval\(|now\(|_timestamp|localtime|current_(date|time)|timeofday\(|random|uuid'
) a ON a.attrelid = c.oid
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND CASE
        WHEN cardinality(%(tables)s::text[]) > 0 THEN c.oid = ANY (%(tables)s::text[]::regclass[])
        -- A role of this name makes its own tables in the schema too, unless told otherwise.
        ELSE NOT (n.nspname = 'onefold' AND c.relname = ANY (%(ours)s::text[]))
            AND n.nspname <> 'information_schema' AND NOT starts_with(n.nspname, 'pg_')
    END
GROUP BY n.nspname, c.relname
ORDER BY n.nspname, c.relname
