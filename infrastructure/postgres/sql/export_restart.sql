SELECT setval(pg_get_serial_sequence(%(table)s, 'position'), %(position)s)
