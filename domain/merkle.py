"""Merkle trees over the hashes of leaves, and proofs from them: RFC 6962, section 2.1, with SHA-256.

A tree of `size` leaves is kept as its peaks: the roots of the perfect trees that it is made of, one for each bit of
its size, the largest first. They are all that is needed to add leaves and to tell the root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

BYTES = 32
"""Length of a hash."""

Subtree = Callable[[int, int], bytes]
"""Gives the root of the tree over the leaves from the first number up to, but without, the second; from 0."""


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of a leaf that holds `entry`."""
    return sha256(b"\0" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node over two others."""
    return sha256(b"\1" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Peaks:
    """A tree of `size` leaves, by the roots of its perfect parts, the largest first."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, size: int, joined: bytes) -> Peaks:
        """Return the peaks that `joined` holds; raises ValueError unless they are as many as the size has bits."""
        if len(joined) != BYTES * size.bit_count():
            raise ValueError(
                f"expected {size.bit_count()} hashes for {size} leaves, found {len(joined)} bytes"
            )
        return cls(size, tuple(joined[start : start + BYTES] for start in range(0, len(joined), BYTES)))

    def __bytes__(self) -> bytes:
        return b"".join(self.hashes)

    @property
    def root(self) -> bytes:
        """The root of the tree; that of an empty one is the hash of nothing."""
        if not self.hashes:
            return sha256(b"").digest()
        root = self.hashes[-1]
        for left in self.hashes[-2::-1]:
            root = node_hash(left, root)
        return root

    def extended(self, leaves: Sequence[bytes]) -> Peaks:
        """Return the tree with the hashes of more leaves at its end."""
        levels = [level for level in range(self.size.bit_length() - 1, -1, -1) if self.size >> level & 1]
        standing = dict(zip(levels, self.hashes, strict=True))
        row, level = list(leaves), 0
        while row:
            if (before := standing.pop(level, None)) is not None:
                row.insert(0, before)
            if len(row) & 1:
                standing[level] = row.pop()
            row = [sha256(b"\1" + row[at] + row[at + 1]).digest() for at in range(0, len(row), 2)]
            level += 1
        return Peaks(
            self.size + len(leaves), tuple(standing[level] for level in sorted(standing, reverse=True))
        )


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root of the tree over the hashes of leaves."""
    return Peaks().extended(leaves).root


def inclusion_proof(index: int, size: int, subtree: Subtree) -> list[bytes]:
    """Return the audit path of leaf `index`, from 0, in the tree of `size` leaves (section 2.1.1).

    Raises ValueError for a leaf that the tree does not have.
    """
    if not 0 <= index < size:
        raise ValueError(f"expected a leaf from 0 to {size - 1}, found {index}")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(start, middle))
            start = middle
    path.reverse()
    return path


def consistency_proof(first: int, second: int, subtree: Subtree) -> list[bytes]:
    """Return the proof that the tree of `second` leaves begins with the one of `first` (section 2.1.2).

    Raises ValueError unless 0 < first <= second.
    """
    if not 0 < first <= second:
        raise ValueError(f"expected a size from 1 to {second}, found {first}")
    path: list[bytes] = []
    start, end, whole = 0, second, True
    while first < end:
        middle = start + _split(end - start)
        if first <= middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(start, middle))
            start, whole = middle, False
    if not whole:
        path.append(subtree(start, end))
    path.reverse()
    return path


def includes(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Tell whether the path proves that the tree with this root has the hash `leaf` at `index` (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    node, last, found = index, size - 1, leaf
    for step in path:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(step, found)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, step)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def continues(first: int, first_root: bytes, second: int, second_root: bytes, path: Sequence[bytes]) -> bool:
    """Tell whether the path proves that the second tree begins with the first one (RFC 9162, 2.1.4.2)."""
    if not 0 < first <= second:
        return False
    if first == second:
        return not path and first_root == second_root
    steps = list(path) if first & (first - 1) else [first_root, *path]
    if not steps:
        return False
    node, last = first - 1, second - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(step, old), node_hash(step, new)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            new = node_hash(new, step)
        node, last = node >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root


def _split(size: int) -> int:
    """Return the largest power of two below a size of 2 or more."""
    return 1 << (size - 1).bit_length() - 1
