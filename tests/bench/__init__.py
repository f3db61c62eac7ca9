"""Benchmarks: Onefold, the `eventsourcing` library and the physical limit, interleaved on one durable server."""
