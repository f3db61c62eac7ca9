"""Onefold: event-sourced aggregates on PostgreSQL, each event folded once."""
