"""Causes: what led to what, as a tree. Pure; cycles and missing causes are shown and not hidden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal["event", "message", "parked", "dead letter"]
Note = Literal["", "missing", "cycle"]

_RANKS: dict[str, int] = {"event": 0, "message": 1, "parked": 2, "dead letter": 2}


@dataclass(frozen=True, slots=True)
class Node:
    """Something that was caused and may be a cause: an event, or a message on its way or at a consumer.

    `id` is what others name as their cause, `cause` what this one names, None for nothing. Several nodes may have one
    id: the event, the message that tells of it, and that message where it waits. `order` puts what has one cause in
    order: time and position. `content` is the caller's own.
    """

    kind: Kind
    id: str
    cause: str | None
    order: tuple[Any, ...]
    content: Any = field(default=None, compare=False)


class Twig(NamedTuple):
    """A line of the tree: how deep it stands, the id, and its node: None where nothing is known of it.

    `note` is "missing" for a cause that others name and that is not there, and "cycle" where the line stands above
    already: it is a cause of its own cause.
    """

    depth: int
    id: str
    node: Node | None
    note: Note = ""


def tree(nodes: Iterable[Node]) -> list[Twig]:
    """Return all nodes as a tree, line by line from the roots down.

    A root is what names no cause, or whose cause is missing; then the missing one stands above it. What is in a cycle,
    and what it led to, stands below the earliest of the cycle.
    """
    by_id: dict[str, list[Node]] = defaultdict(list)
    for node in dict.fromkeys(nodes):
        by_id[node.id].append(node)
    for same in by_id.values():
        same.sort(key=lambda node: (_RANKS[node.kind], node.order))
    below: dict[str | None, list[str]] = defaultdict(list)
    for identity, same in by_id.items():
        below[same[0].cause].append(identity)
    for found in below.values():
        found.sort(key=lambda identity: by_id[identity][0].order)
    missing = [cause for cause in below if cause is not None and cause not in by_id]
    missing.sort(key=lambda cause: by_id[below[cause][0]][0].order)
    twigs: list[Twig] = []
    seen: set[str] = set()
    for root in below[None]:
        _grow(root, 0, by_id, below, seen, twigs)
    for cause in missing:
        twigs.append(Twig(0, cause, None, "missing"))
        for identity in below[cause]:
            _grow(identity, 1, by_id, below, seen, twigs)
    # What is left has a cause that is known, and none of them leads to a root.
    for identity in sorted(by_id.keys() - seen, key=lambda each: by_id[each][0].order):
        if identity not in seen:
            start = _earliest_of_cycle(identity, by_id)
            _grow(start, 0, by_id, below, seen, twigs)
    return twigs


def _grow(
    root: str,
    depth: int,
    by_id: dict[str, list[Node]],
    below: dict[str | None, list[str]],
    seen: set[str],
    twigs: list[Twig],
) -> None:
    waiting = [(root, depth)]
    while waiting:
        identity, depth = waiting.pop()
        first, *others = by_id[identity]
        if identity in seen:
            twigs.append(Twig(depth, identity, first, "cycle"))
            continue
        seen.add(identity)
        twigs.append(Twig(depth, identity, first))
        twigs += (Twig(depth + 1, identity, other) for other in others)
        waiting += ((each, depth + 1) for each in reversed(below.get(identity, ())))


def _earliest_of_cycle(identity: str, by_id: dict[str, list[Node]]) -> str:
    passed: dict[str, None] = {}
    while identity not in passed:
        passed[identity] = None
        cause = by_id[identity][0].cause
        assert cause is not None
        identity = cause
    names: Sequence[str] = list(passed)
    return min(names[names.index(identity) :], key=lambda each: by_id[each][0].order)
