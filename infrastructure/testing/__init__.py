"""Testing: what the users of consumers prove theirs with."""
