"""The domain: events, aggregates, lifecycles and value objects, without any input or output."""
