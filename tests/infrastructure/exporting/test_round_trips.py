"""Logs of the shop and of real data come back from their exports identical, and so do their read models."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psycopg
import pytest

from onefold import Aggregate, App, Event, Projection, Registry, Row, connect
from onefold.domain.event import EventMeta
from onefold.infrastructure.demo.simulation import simulate
from onefold.infrastructure.postgres.log import EventLog
from onefold.infrastructure.postgres.pool import open_pool
from onefold.infrastructure.reading import Importer, load_mapping
from onefold.projections.shop import app as shop
from onefold.projections.shop import order_summary

from .conftest import everything, exported, imported

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("ONEFOLD_DATA") or ROOT.parent / "shared" / "data")
OLIST = sorted((DATA / "olist").glob("export_a_*.csv"))
BPIC = DATA / "bpic2019" / "bpic2019_1t_per_variant.xes.gz"
registry = Registry()


class Purchase(Aggregate, category="purchase"):
    class Noted(Event, name="purchase.noted", registry=registry):
        activity: str


class Case(Row, key="case_id"):
    case_id: str
    notes: int
    last: str


cases = Projection("cases", Case, registry=registry)


@cases.on(Purchase.Noted)
def noted(row: Case | None, event: Purchase.Noted) -> Case:
    return Case(case_id=event.meta.key, notes=1 if row is None else row.notes + 1, last=event.activity)


purchases = App(aggregates=[Purchase], projections=[cases])


def read_models(url: str) -> dict[str, list[Any]]:
    """Every row of every read model, with the positions last applied."""
    with psycopg.connect(url) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT c.relname FROM pg_class c WHERE c.relkind IN ('r', 'p')"
                " AND c.relnamespace = 'read'::regnamespace ORDER BY c.relname"
            )
        ]
        return {
            name: connection.execute(f"SELECT t::text FROM read.{name} t ORDER BY 1").fetchall()  # type: ignore[call-overload]
            for name in names
        }


def folded(url: str, app: App) -> dict[str, list[Any]]:
    with connect(app, url) as store:
        store.run()
    return read_models(url)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_the_shop_comes_back(database_url: str, other_url: str, tmp_path: Path, kind: str) -> None:
    with connect(shop, database_url) as store:
        for event in simulate(60, seed=5).events:
            store.log.append([event], metadata={"actor": "simulation", "correlation": event.meta.key})
    made = exported(database_url, tmp_path / f"shop.{kind}")
    imported(other_url, tmp_path / f"shop.{kind}")
    assert everything(other_url) == everything(database_url)
    assert made.events > 200
    models = folded(database_url, shop)
    assert {"order_summary", "account_balance"} <= set(models)
    assert folded(other_url, shop) == models


@pytest.mark.skipif(
    len(OLIST) != 3,
    reason=f"Olist's exports are not in {DATA}/olist; name the folder of the data sets in ONEFOLD_DATA",
)
def test_real_orders_come_back(database_url: str, other_url: str, tmp_path: Path) -> None:
    with open_pool(database_url) as pool:
        Importer(EventLog(pool)).run(load_mapping(f"{ROOT}/docs/examples/olist.py:mapping"), OLIST)
    made = exported(database_url, tmp_path / "olist.jsonl")
    imported(other_url, tmp_path / "olist.jsonl")
    assert exported(other_url, tmp_path / "again.jsonl").sha256 == made.sha256
    part = App(aggregates=shop.aggregates, projections=[order_summary])
    assert folded(other_url, part) == folded(database_url, part)


def traces() -> Iterator[tuple[str, list[tuple[str, datetime]]]]:
    with gzip.open(BPIC) as file:
        for _, element in ET.iterparse(file):
            if element.tag == "trace":
                (case,) = (each.get("value", "") for each in element.findall("string"))
                events = []
                for event in element.findall("event"):
                    values = {part.get("key"): part.get("value", "") for part in event}
                    events.append((values["concept:name"], datetime.fromisoformat(values["time:timestamp"])))
                yield case, events
                element.clear()


@pytest.mark.skipif(
    not BPIC.is_file(),
    reason=f"{BPIC.name} is not in {BPIC.parent}; name the folder of the data sets in ONEFOLD_DATA",
)
@pytest.mark.parametrize(
    ("count", "kind"), [(1_000, "csv"), pytest.param(None, "jsonl", marks=pytest.mark.soak)]
)
def test_real_purchases_come_back(
    database_url: str, other_url: str, tmp_path: Path, count: int | None, kind: str
) -> None:
    total = 0
    with open_pool(database_url) as pool:
        log = EventLog(pool, registry=registry)
        for _, some in groupby(enumerate(islice(traces(), count)), key=lambda each: each[0] // 100):
            events = [
                Purchase.Noted(activity=activity).bound(
                    EventMeta(Purchase.stream_of(case), version, occurred_at=at)
                )
                for _, (case, told) in some
                for version, (activity, at) in enumerate(told, start=1)
            ]
            log.append(events)
            total += len(events)
    made = exported(database_url, tmp_path / f"bpic.{kind}")
    assert (made.events, count is not None or total > 300_000) == (total, True)
    imported(other_url, tmp_path / f"bpic.{kind}")
    assert exported(other_url, tmp_path / f"again.{kind}").sha256 == made.sha256
    assert folded(other_url, purchases) == folded(database_url, purchases)
