SELECT pg_xact_status(%b::xid8)
