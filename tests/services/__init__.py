"""The brokers that the tests run against: real servers, private to a run, on free ports of 127.0.0.1."""
