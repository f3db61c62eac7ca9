SELECT onefold.make_ledger_partition('http_responses', name, format('IN (%%s)', generation))
FROM (VALUES (%s::text, %s::integer)) AS made (name, generation)
