"""Files, written whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

LONGEST = 200
"""Bytes of a name that the key has room beside, where names are of 255 bytes at most."""


def write(path: Path, data: bytes, key: str) -> None:
    """Put a file of these bytes in place of what is at `path`: who looks sees the one or the other, never a part.

    It is written beside its place as `.onefold-<key>-<name>`, a long name as its digest, synced, renamed, and its
    folder synced. Writers of one key and path take turns; one that is killed leaves that file to the next, which
    begins it anew. Raises `OSError`, as where the folder is missing.
    """
    name = os.fsencode(path.name)
    shown = path.name if len(name) <= LONGEST else hashlib.blake2b(name, digest_size=16).hexdigest()
    part = path.with_name(f".onefold-{key}-{shown}")
    while True:
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(part, file.fileno()):
                # Another writer has renamed it in the meantime.
                continue
            file.truncate(0)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
            break
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
