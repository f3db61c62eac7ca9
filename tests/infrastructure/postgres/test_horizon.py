"""The horizon that several readers of one log share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from onefold.infrastructure.postgres.horizon import Horizon

Open = Callable[[], psycopg.Connection[Any]]


def append(connection: psycopg.Connection[Any]) -> int:
    found = connection.execute(
        "INSERT INTO onefold.events (version, event_id, stream, type, data)"
        " VALUES (1, gen_random_uuid(), gen_random_uuid()::text, 'horizon.noted', '{}') RETURNING position"
    ).fetchone()
    assert found is not None
    return int(found[0])


class Interrupted(Horizon):
    """A horizon whose first look takes long: `meanwhile` happens before what it saw is made use of."""

    def __init__(self, meanwhile: Callable[[Horizon], None]) -> None:
        super().__init__("onefold", "events")
        self._meanwhile: Callable[[Horizon], None] | None = meanwhile

    def _look(self, connection: psycopg.Connection[Any]) -> Any:
        found = super()._look(connection)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile(self)
        return found


def test_a_look_that_is_older_than_a_stall_does_not_end_it(open_raw: Open) -> None:
    """A thread that saw nobody append must not speak for those who began after it had looked."""
    slow, late, other, writer = open_raw(), open_raw(), open_raw(), open_raw()
    settled: list[int] = []

    def meanwhile(horizon: Horizon) -> None:
        late.execute("BEGIN")
        assert append(late) == 1
        assert append(writer) == 2
        settled.append(horizon.settle(other))

    horizon = Interrupted(meanwhile)
    settled.append(horizon.settle(slow))
    settled.append(horizon.settle(other))
    assert settled == [0, 0, 0]
    late.execute("COMMIT")
    assert horizon.settle(slow) == horizon.settle(other) == 2


def test_a_connection_relies_on_what_was_settled_on_it(open_raw: Open) -> None:
    one, other = open_raw(), open_raw()
    append(one)
    horizon = Horizon("onefold", "events")
    assert horizon.settle(one) == horizon.settled(one) == 1
    assert horizon.settled(other) == 0
    assert horizon.settle(other) == horizon.settled(other) == 1
