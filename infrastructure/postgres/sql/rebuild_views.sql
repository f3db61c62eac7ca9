-- Views of a table, and the columns and types that they want of it.
SELECT DISTINCT v.oid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_depend d
JOIN pg_rewrite r ON r.oid = d.objid
JOIN pg_class v ON v.oid = r.ev_class AND v.relkind = 'v'
LEFT JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid AND a.attnum > 0
WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %(table)s::regclass
ORDER BY 1, 2
