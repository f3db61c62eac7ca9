-- What the owner and others have put on a table, as statements that put it on the table of that name in the schema that is
-- first in the search path. The schema of the table must be first in it now, so that its name is left out.
WITH t AS (SELECT c.*, format('%%I', c.relname) AS name FROM pg_class c WHERE c.oid = %(table)s::regclass)
SELECT statement FROM (
    SELECT 1 AS place, i.indexrelid::bigint AS nth, pg_get_indexdef(i.indexrelid, 0, true) AS statement
    FROM t JOIN pg_index i ON i.indrelid = t.oid
    WHERE i.indisvalid AND NOT i.indisprimary
        AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('u', 'x', 'p'))
    UNION ALL
    SELECT 2, k.oid::bigint, format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', t.name, k.conname, pg_get_constraintdef(k.oid, true))
    FROM t JOIN pg_constraint k ON k.conrelid = t.oid WHERE k.contype IN ('u', 'x', 'c')
    UNION ALL
    SELECT 3, a.nth, format('ALTER TABLE %%s SET (%%s)', t.name, a.setting)
    FROM t, unnest(t.reloptions) WITH ORDINALITY AS a (setting, nth)
    UNION ALL
    SELECT 4, c.objsubid, CASE c.objsubid
        WHEN 0 THEN format('COMMENT ON TABLE %%s IS %%L', t.name, c.description)
        ELSE format('COMMENT ON COLUMN %%s.%%I IS %%L', t.name, a.attname, c.description)
    END
    FROM t JOIN pg_description c ON c.classoid = 'pg_class'::regclass AND c.objoid = t.oid
    LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = c.objsubid
    UNION ALL
    SELECT 5, 0, format('ALTER TABLE %%s OWNER TO %%I', t.name, pg_get_userbyid(t.relowner)) FROM t
    UNION ALL
    SELECT 6, row_number() OVER (), format('GRANT %%s ON %%s TO %%s%%s', g.privilege_type, t.name,
        CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
        CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
    FROM t, aclexplode(t.relacl) g WHERE g.grantee <> t.relowner
    UNION ALL
    SELECT 7, a.attnum, format('GRANT %%s (%%I) ON %%s TO %%s%%s', g.privilege_type, a.attname, t.name,
        CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
        CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
    FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND NOT a.attisdropped, aclexplode(a.attacl) g
) belongings
ORDER BY place, nth
