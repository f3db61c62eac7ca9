"""PostgreSQL, the embedded server, the command line: what carries the log and the projections."""
