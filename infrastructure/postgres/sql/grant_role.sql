SELECT rolsuper FROM pg_roles WHERE rolname = %(role)s
