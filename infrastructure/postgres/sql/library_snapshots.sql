SELECT stream, version, type, coalesce(raw, convert_to(data::text, 'UTF8'))
FROM {table} WHERE stream = %b AND version > %b AND version <= %b ORDER BY version {order} LIMIT %b::bigint
