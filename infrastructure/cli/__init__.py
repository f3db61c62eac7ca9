"""The command line `onefold`."""

from .program import main

__all__ = ["main"]
