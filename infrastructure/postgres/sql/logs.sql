SELECT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE t.tgname = 'refuse_change' AND c.relnamespace = to_regnamespace('onefold')
ORDER BY c.relname
