"""The tree of causes shows every node once, and what is missing or goes round in a circle."""

from __future__ import annotations

from onefold.projections.causes import Node, Twig, tree


def node(identity: str, cause: str | None = None, order: int = 0, kind: str = "event") -> Node:
    return Node(kind, identity, cause, (order,))  # type: ignore[arg-type]


def drawn(*nodes: Node) -> list[str]:
    lines = []
    for twig in tree(nodes):
        kind = "" if twig.node is None or twig.node.kind == "event" else twig.node.kind
        lines.append("  " * twig.depth + " ".join(filter(None, (twig.id, kind, twig.note))))
    return lines


def test_what_was_caused_stands_below_its_cause_in_order() -> None:
    nodes = [node("a", order=1), node("b", "a", 3), node("c", "a", 2), node("d", "b", 4), node("e", order=5)]
    assert drawn(*reversed(nodes)) == ["a", "  c", "  b", "    d", "e"]
    assert tree([]) == []


def test_a_cause_that_is_missing_stands_above_what_it_led_to() -> None:
    assert drawn(node("b", "a", 2), node("c", "a", 1), node("d", "c", 3)) == [
        "a missing",
        "  c",
        "    d",
        "  b",
    ]
    assert tree([node("b", "a")])[0] == Twig(0, "a", None, "missing")


def test_a_cycle_is_shown_where_it_closes() -> None:
    nodes = [node("a", "c", 1), node("b", "a", 2), node("c", "b", 3), node("d", "c", 4)]
    assert drawn(*nodes) == ["a", "  b", "    c", "      a cycle", "      d"]
    assert drawn(node("z", "z")) == ["z", "  z cycle"]


def test_what_hangs_on_a_cycle_is_not_taken_for_a_part_of_it() -> None:
    nodes = [node("early", "b", 1), node("a", "b", 2), node("b", "a", 3)]
    assert drawn(*nodes) == ["a", "  b", "    early", "    a cycle"]


def test_the_message_of_an_event_and_where_it_waits_stand_below_it() -> None:
    nodes = [
        node("e", order=1),
        node("e", "never asked", 2, "message"),
        node("e", None, 3, "dead letter"),
        node("f", "e", 4),
        node("m", "f", 5, "message"),
        node("m", None, 6, "parked"),
    ]
    assert drawn(*nodes) == ["e", "  e message", "  e dead letter", "  f", "    m message", "      m parked"]
    assert drawn(*nodes, *nodes) == drawn(*nodes)


def test_a_long_chain_is_no_problem() -> None:
    chain = [node(str(number), str(number - 1) if number else None, number) for number in range(20_000)]
    assert [twig.depth for twig in tree(chain)] == list(range(20_000))
