"""Run the benchmarks: `make bench`, or `python tests/bench/run.py --rounds 5 --only append,projection`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import append, consuming, ledger, load, projecting, rebuild, relaying, sealing, wakeup
from bench.measure import Case
from bench.peer import Peer
from onefold.infrastructure.embedded import EmbeddedServer
from onefold.infrastructure.postgres.migrate import migrate

RESULTS = Path(__file__).parents[2] / ".bench" / "results.json"
GROUPS = ("append", "load", "projection", "rebuild", "consume", "wakeup", "ledger", "relay", "seal", "memory")


@contextmanager
def fresh_database() -> Iterator[str]:
    """Give a migrated database on a private server with durable defaults, or on ONEFOLD_DATABASE_URL's server."""
    given = os.environ.get("ONEFOLD_DATABASE_URL")
    if given:
        name = "onefold_bench"
        with psycopg.connect(given, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name}")
        yield migrated(make_conninfo(given, dbname=name))
        with psycopg.connect(given, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        return
    with tempfile.TemporaryDirectory(prefix="onefold-bench-") as home:
        Path(home).chmod(0o711)
        with EmbeddedServer(Path(home)).hold() as url:
            yield migrated(url)


def migrated(url: str) -> str:
    """Migrate the database at `url` and return the url."""
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection)
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            found = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
            if found != ("on",):
                raise SystemExit(
                    f"expected {setting} on, found {found}: figures of a server that may lose data say little"
                )
    return url


def main() -> None:
    """Run what is asked for, print medians and ratios, and write them to .bench/results.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, at least 3")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"comma-separated of {', '.join(GROUPS)}")
    parser.add_argument("--keys", type=int, default=ledger.KEYS, help="keys that the ledgers hold beforehand")
    parser.add_argument(
        "--events", type=int, default=rebuild.EVENTS, help="events of the log that is rebuilt"
    )
    parser.add_argument(
        "--sealed", type=int, default=200_000, help="events that are sealed and verified, at least"
    )
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if arguments.rounds < 3 or not set(chosen) <= set(GROUPS):
        parser.error(f"--rounds is 3 or more, --only takes {', '.join(GROUPS)}")
    console = Console()
    results: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(),
        "rounds": arguments.rounds,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "cases": {},
    }
    with fresh_database() as url:
        peer = Peer(url)
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute("SELECT current_setting('server_version')").fetchone()
            results["machine"]["postgresql"] = None if row is None else row[0]
        # The projection comes first: it needs a log that holds its events and nothing else.
        if "projection" in chosen:
            run(console, [projecting.case(url, peer)], arguments.rounds, results)
        if "rebuild" in chosen:
            with console.status(f"filling a log with {arguments.events:,} events"):
                filled_log = rebuild.cases(url, peer, arguments.events, fill_peer="projection" not in chosen)
            run(console, filled_log, arguments.rounds, results)
        if "consume" in chosen:
            if "projection" not in chosen:
                with psycopg.connect(url, autocommit=True) as connection:
                    projecting.fill(connection)
            with consuming.cases(url) as cases:
                run(console, cases, arguments.rounds, results)
        if "append" in chosen:
            run(console, append.cases(url, peer), arguments.rounds, results)
        if "load" in chosen:
            with load.cases(url, peer) as cases:
                run(console, cases, arguments.rounds, results)
        if "wakeup" in chosen:
            measure_wakeups(console, url, peer, arguments.rounds, results)
        if "ledger" in chosen:
            with console.status(f"filling the ledgers with {arguments.keys:,} keys"):
                filled = ledger.fill(url, arguments.keys)
            with ledger.cases(url, filled) as cases:
                run(console, cases, arguments.rounds, results)
        if "relay" in chosen:
            with relaying.cases(url) as cases:
                run(console, cases, arguments.rounds, results)
        if "seal" in chosen:
            run(console, sealing.cases(url, verified=arguments.sealed), arguments.rounds, results)
        if "memory" in chosen:
            with console.status("consuming a million messages"):
                results["memory"] = consuming.memory(url)
    report(console, results)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


def run(console: Console, cases: list[Case], rounds: int, results: dict[str, Any]) -> None:
    """Run the cases in interleaved rounds and keep medians, ratios and every figure."""
    with console.status("") as status:
        for number in range(rounds):
            for case in cases:
                status.update(f"round {number + 1} of {rounds}: {case.name}")
                case.round()
    for case in cases:
        keep(case, results)


def measure_wakeups(console: Console, url: str, peer: Peer, rounds: int, results: dict[str, Any]) -> None:
    """Measure the wake-up in interleaved rounds; median and 99th percentile are two cases of one run."""
    contenders: dict[str, Callable[[], tuple[float, float]]] = {
        "onefold": lambda: wakeup.onefold(url),
        "eventsourcing": lambda: wakeup.peer(url, peer),
        "limit": lambda: wakeup.limit(url),
    }
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    with console.status("") as status:
        for number in range(rounds):
            for name, contender in contenders.items():
                status.update(f"round {number + 1} of {rounds}: wake-up, {name}")
                pairs[name].append(contender())
    for place, name in enumerate(("wake-up, median", "wake-up, 99th percentile")):
        figures = {contender: [pair[place] for pair in found] for contender, found in pairs.items()}
        keep(Case(name, "ms", {}, higher_is_better=False, figures=figures), results)


def keep(case: Case, results: dict[str, Any]) -> None:
    """Keep medians, ratios and every figure of a case."""
    results["cases"][case.name] = {
        "unit": case.unit,
        "median": {name: case.median(name) for name in case.figures},
        "ratio": {other: case.ratio("onefold", other) for other in case.figures if other != "onefold"},
        "figures": case.figures,
    }


def report(console: Console, results: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(title=f"medians of {results['rounds']} interleaved rounds", title_justify="left")
    for heading in ("case", "onefold", "eventsourcing", "limit", "", "x eventsourcing", "of the limit"):
        table.add_column(heading, justify="left" if heading in ("case", "") else "right")
    others = Table()
    for heading in ("case", "onefold", "", "beside it", "", "x beside it"):
        others.add_column(heading, justify="left" if heading in ("case", "") else "right")
    for name, case in results["cases"].items():
        median, ratio = case["median"], case["ratio"]
        beside = [other for other in median if other not in ("onefold", "eventsourcing", "limit")]
        if beside or len(median) == 1:
            for other in beside or [""]:
                others.add_row(
                    name,
                    figure(median.get("onefold")),
                    case["unit"],
                    figure(median.get(other)),
                    other,
                    f"{ratio[other]:.2f}" if other in ratio else "",
                )
        if median.keys().isdisjoint(("eventsourcing", "limit")):
            continue
        table.add_row(
            name,
            *(figure(median.get(contender)) for contender in ("onefold", "eventsourcing", "limit")),
            case["unit"],
            *(f"{ratio[other]:.2f}" if other in ratio else "" for other in ("eventsourcing", "limit")),
        )
    for each in (table, others):
        if each.row_count:
            console.print(each)
    for received, megabytes in results.get("memory", ()):
        console.print(f"memory after {received:,} messages: {megabytes:,.0f} MB")


def figure(value: float | None) -> str:
    """Return a figure with three significant digits or more."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    main()
