"""Rebuilds: a new version of a read model is built beside the one that serves, verified, and put in its place."""
