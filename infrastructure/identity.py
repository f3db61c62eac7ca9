"""Identities: event ids that rise with time, and those derived from a key."""

from __future__ import annotations

import os
import time
from uuid import UUID, uuid5

NAMESPACE = UUID("9b0d6f0e-5d0a-5c53-9f0e-0f0f5f2d1c11")
"""Namespace of the ids that are derived from keys (RFC 9562, UUIDv5)."""


def new_event_id() -> UUID:
    """Return a UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random bits."""
    value = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)


def event_id_of(source: str, key: str) -> UUID:
    """Return the id that stands for `key` of `source`, the same on every call."""
    return uuid5(NAMESPACE, f"{source}\x1f{key}")
