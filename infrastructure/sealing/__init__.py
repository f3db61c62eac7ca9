"""Sealing: ranges of a log that are closed are sealed, so that a later change of them is found and named."""
