"""Relaying: what was written to the outbox, or to the log, published to a broker."""
