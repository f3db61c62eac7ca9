SELECT pg_notify('onefold_outbox', '')
