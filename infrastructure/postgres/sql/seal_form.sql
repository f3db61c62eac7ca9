SELECT jsonb_send(%(text)s::jsonb), timestamptz_send('2026-03-01 12:30:00.000001+00'), int8send(7)
