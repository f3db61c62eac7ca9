"""Delivery: the simulated events on their way, some late, some twice, a few with other words under the same key.

As a program (`python -m onefold.infrastructure.demo.delivery`) it is the delivering process: it reads names of files
from standard input, line by line, delivers what is in each, and answers with the report as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from random import Random

from ...domain.account import Account
from ...domain.errors import OnefoldError
from ...domain.event import Event, EventMeta, encode
from ...domain.money import Money
from ...domain.order import Order
from ...domain.registry import registry
from ..postgres.log import EventLog
from ..postgres.pool import open_pool
from ..reading import Fact, Importer, Row, each, reads
from ..settings import Settings

SOURCE = "onefold demo"
BATCH = 200
"""Events of one transaction of the delivering process."""


class Kind(Enum):
    """What a delivery is: the first of its event, the same again, or something else under its key."""

    FIRST = "first"
    AGAIN = "again"
    CONTRADICTION = "contradiction"


@dataclass(frozen=True, slots=True)
class Disturbance:
    """How badly events are delivered.

    `duplicates` and `disorder` are shares of the events: that many come twice, and that many are held up for up to
    `window` deliveries. `contradictions` counts deliveries that say another amount under a key that came before.
    """

    duplicates: float = 0.20
    disorder: float = 0.10
    window: int = 400
    contradictions: int = 5


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of an event."""

    kind: Kind
    event: Event

    @property
    def key(self) -> str:
        """The identity of the event in its source."""
        return key_of(self.event)


@dataclass(frozen=True, slots=True)
class Plan:
    """Deliveries in the order in which they are made, and what is wrong with it.

    `events` are delivered in all, `repeated` of them twice, `late` after others that happened later, `overtaken`
    after a later event of their own stream.
    """

    deliveries: Sequence[Delivery]
    events: int
    repeated: int
    late: int
    overtaken: int
    contradictions: int


def key_of(event: Event) -> str:
    """Return the identity that an event has in its source: its stream and its number there."""
    return f"{event.meta.stream}#{event.meta.version}"


def plan(events: Sequence[Event], disturbance: Disturbance, seed: int) -> Plan:
    """Return how events, given in the order of time, are delivered; the same arguments give the same plan."""
    random = Random(f"onefold delivery {seed}")  # noqa: S311 - a simulation, not a secret
    window = disturbance.window
    late = set(random.sample(range(len(events)), round(len(events) * disturbance.disorder)))
    twice = set(random.sample(range(len(events)), round(len(events) * disturbance.duplicates)))
    with_amounts = [number for number, event in enumerate(events) if _contradicted(event) is not None]
    contradicted = set(random.sample(with_amounts, min(disturbance.contradictions, len(with_amounts))))
    places: list[tuple[float, int, Delivery]] = []

    def put(place: float, kind: Kind, event: Event) -> None:
        places.append((place, len(places), Delivery(kind, event)))

    for number, event in enumerate(events):
        place = number + (random.uniform(1, window) if number in late else 0)
        put(place, Kind.FIRST, event)
        if number in twice:
            put(place + random.uniform(0, window), Kind.AGAIN, event)
        other = _contradicted(event) if number in contradicted else None
        if other is not None:
            put(place + random.uniform(1, window), Kind.CONTRADICTION, other)
    places.sort(key=lambda entry: entry[:2])
    deliveries = [delivery for _, _, delivery in places]
    return Plan(
        deliveries, len(events), len(twice), _late(deliveries), _overtaken(deliveries), len(contradicted)
    )


def _contradicted(event: Event) -> Event | None:
    if isinstance(event, Order.PaymentReceived | Account.Deposited):
        other = event.amount + Money.of(Decimal("0.01"), event.amount.currency)
        return event.model_copy(update={"amount": other}).bound(event.meta)
    return None


def _late(deliveries: Iterable[Delivery]) -> int:
    count, latest = 0, None
    for delivery in deliveries:
        at = delivery.event.meta.happened
        if delivery.kind is Kind.FIRST:
            if latest is not None and at < latest:
                count += 1
            latest = at if latest is None else max(latest, at)
    return count


def _overtaken(deliveries: Iterable[Delivery]) -> int:
    count, highest = 0, dict[str, int]()
    for delivery in deliveries:
        meta = delivery.event.meta
        if delivery.kind is Kind.FIRST:
            count += meta.version < highest.get(meta.stream, 0)
            highest[meta.stream] = max(meta.version, highest.get(meta.stream, 0))
    return count


def write(deliveries: Iterable[Delivery], path: Path) -> None:
    """Write deliveries to a file of JSON lines, as the delivering process reads them."""
    with path.open("w", encoding="utf-8") as file:
        for delivery in deliveries:
            event = delivery.event
            line = {
                "key": delivery.key,
                "stream": event.meta.stream,
                "type": event.event_name,
                "schema_version": event.schema_version,
                "occurred_at": event.meta.happened.isoformat(),
                "data": encode(event),
            }
            file.write(json.dumps(line) + "\n")


@reads(SOURCE, kind="jsonl")
@each
def mapping(row: Row) -> Iterator[Fact]:
    """The events that a file of deliveries holds."""
    stream = row.text("stream")
    event = registry.decode(
        row.text("type"), row.integer("schema_version"), row.text("data"), EventMeta(stream, 0)
    )
    yield Fact(row.text("key"), stream, event, datetime.fromisoformat(row.text("occurred_at")), row=row)


def main() -> None:
    """Deliver the files that standard input names, until it ends."""
    url = Settings.from_env().database_url
    if url is None:
        raise OnefoldError("expected ONEFOLD_DATABASE_URL to name the database to deliver to, found nothing")
    with open_pool(url, size=2, application="onefold deliver") as pool:
        importer = Importer(EventLog(pool), batch=BATCH)
        for name in sys.stdin:
            report = importer.run(mapping, [name.removesuffix("\n")])
            sys.stdout.write(json.dumps(report.as_dict()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
