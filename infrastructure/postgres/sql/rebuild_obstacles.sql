-- What hangs on a table and cannot be made anew on another one.
SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
FROM pg_depend d
WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = %(table)s::regclass AND d.deptype IN ('n', 'a', 'I', 'i')
    AND CASE d.classid
        WHEN 'pg_class'::regclass THEN (SELECT relkind FROM pg_class WHERE oid = d.objid) NOT IN ('i', 't')
        WHEN 'pg_constraint'::regclass THEN (SELECT contype = 'f' FROM pg_constraint WHERE oid = d.objid)
        WHEN 'pg_attrdef'::regclass THEN false
        WHEN 'pg_type'::regclass THEN false
        WHEN 'pg_statistic_ext'::regclass THEN false
        WHEN 'pg_rewrite'::regclass THEN (
            SELECT c.relkind <> 'v' FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE r.oid = d.objid)
        WHEN 'pg_trigger'::regclass THEN (SELECT NOT tgisinternal FROM pg_trigger WHERE oid = d.objid)
        ELSE true
    END
UNION
-- Whatever is made of the type of its rows.
SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
FROM pg_class c JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass AND d.refobjid = c.reltype
WHERE c.oid = %(table)s::regclass AND d.deptype = 'n'
UNION
SELECT 'row level security' FROM pg_class WHERE oid = %(table)s::regclass AND (relrowsecurity OR relforcerowsecurity)
ORDER BY 1
