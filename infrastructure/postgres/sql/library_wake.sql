, (SELECT pg_notify({channel}, '') IS NULL)
