"""Audit: reading what the log has kept, and what was made of it."""
