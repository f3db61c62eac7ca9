"""Consuming: deliveries from a broker, decided and applied in the database, and only then acknowledged."""
