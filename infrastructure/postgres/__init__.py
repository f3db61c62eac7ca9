"""The log and the read models on PostgreSQL."""
