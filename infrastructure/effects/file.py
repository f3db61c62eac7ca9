"""Files, written whole or not at all."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def write(path: Path, data: bytes, key: str) -> None:
    """Put a file of these bytes in place of what is at `path`: who looks sees the one or the other, never a part.

    It is written beside its place as `.onefold-<key>-<name>`, synced, renamed, and its folder synced. Writers of one
    key and path take turns; one that is killed leaves that file to the next, which begins it anew.
    Raises `OSError`, as where the folder is missing.
    """
    part = path.with_name(f".onefold-{key}-{path.name}")
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
