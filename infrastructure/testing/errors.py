"""What a proof of a consumer can come to."""

from __future__ import annotations


class NotExactlyOnce(AssertionError):
    """The consumer has another effect than that of each message once, in order."""


class ProvesNothing(AssertionError):
    """The test itself cannot tell a right consumer from a wrong one, or cannot be run."""
