SELECT onefold.make_ledger_partition('ledger', name, format('IN (%%s)', generation))
FROM (VALUES (%s::text, %s::integer)) AS made (name, generation)
