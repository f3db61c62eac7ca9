"""Process managers at work: their subscription to the log and to their timeouts, and how they are run."""
