SELECT pg_notify('onefold_effects', '')
