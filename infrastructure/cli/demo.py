"""`onefold demo`: the whole way, made hard and judged."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from ...domain.money import plus
from ..connection import without_password
from ..settings import Settings
from .options import AsJson
from .output import (
    aside,
    cell,
    counted,
    fitted,
    heading,
    plain,
    progress,
    report,
    seconds,
    sign,
    table,
    write_json,
)
from .problems import PROBLEMS
from .status import document as status_document
from .status import overview

if TYPE_CHECKING:
    from ..demo.database import Place
    from ..demo.demonstration import Demonstration
    from ..demo.verdict import Verdict

ROWS = 5
STEPS = {
    "simulate": "simulating a shop",
    "deliver": "delivering its events",
    "take over": "waiting until the lease of the killed worker has run out",
    "catch up": "catching up",
    "verify": "comparing",
}


def demo(
    orders: Annotated[
        int, typer.Option("--orders", min=1, metavar="N", help="Orders of the simulated year.")
    ] = 2000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed gives the same shop.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the database for a look.")] = False,
    json: AsJson = False,
) -> None:
    """Simulate a shop, deliver its events badly, kill a worker, and prove the read models right.

    A fifth of the events comes twice, a tenth comes late, a few deliveries contradict what came before, and the
    process that keeps the read models is killed in mid-work. The verdict: the read models equal a plain in-memory
    fold of the log, and the shop as it was. Exits with 1 if they do not.
    """
    # The bundled shop is imported where it runs: an application of the user may have events of the same names.
    from ..demo.database import demo_database
    from ..demo.demonstration import demonstrate

    console = aside()
    with progress(console, wanted=not json) as bars:
        observer = _Teller(bars, console, quiet=json)
        observer.begins("start")
        with demo_database(Settings.from_env(), keep=keep) as place:
            observer.ends(f"PostgreSQL {place.server}, database {place.name}")
            shown = demonstrate(place.url, orders=orders, seed=seed, observer=observer)
    if json:
        write_json(_document(shown, orders, place))
    else:
        _show(report(), shown, place)
    if not shown.verdict.passed:
        raise typer.Exit(PROBLEMS)


class _Teller:
    """Tells on standard error what goes on."""

    def __init__(self, bars: Progress, console: Console, *, quiet: bool) -> None:
        self._bars = bars
        self._console = bars.console if not bars.disable else console
        self._quiet = quiet
        self._task: TaskID | None = None

    def begins(self, step: str) -> None:
        self._task = self._bars.add_task(STEPS.get(step, "starting the database"), total=None)

    def moves(self, share: float) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=share, total=1.0)

    def ends(self, note: str) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        if not self._quiet:
            self._console.print(Text.assemble(sign(self._console, True), f" {plain(note)}"))


def _show(console: Console, shown: Demonstration, place: Place) -> None:
    _show_deliveries(console, shown)
    _show_worker(console, shown)
    _show_models(console, shown)
    heading(console, "Lag")
    lag = shown.lag
    console.print(
        f"at worst {counted(lag.worst_events, 'event')} and {seconds(lag.worst_seconds)}, "
        f"in the end {counted(lag.final_events, 'event')}"
    )
    console.print(overview(console, shown.status))
    _show_verdict(console, shown.verdict)
    console.print(f"{seconds(shown.seconds)}, seed {shown.seed}", style="dim")
    if place.kept:
        _show_place(console, place)


def _show_deliveries(console: Console, shown: Demonstration) -> None:
    plan, outcomes = shown.plan, shown.outcomes
    heading(console, "What came in")
    rows = table("deliveries", "count", "share", "", right=("count", "share"))
    for name, count, words in (
        ("events", plan.events, "each delivered at least once"),
        ("twice", plan.repeated, "delivered a second time"),
        ("late", plan.late, f"after what happened later; {plan.overtaken:,} of them in their own stream"),
        ("contradicting", plan.contradictions, "another amount under a key that came before"),
    ):
        rows.add_row(name, cell(count), f"{100 * count / plan.events:.1f} %", words)
    console.print(rows)
    heading(console, "What became of it")
    rows = table("outcome", "count", "", right=("count",))
    rows.add_row("appended", cell(outcomes.appended), "new to the log")
    rows.add_row("duplicate", cell(outcomes.duplicate), "in the log already: nothing to do")
    rows.add_row("conflict", cell(outcomes.conflict), "contradicts the log: listed, not applied")
    if outcomes.unreadable:
        rows.add_row("unreadable", cell(outcomes.unreadable), "could not be read")
    console.print(rows)
    for conflict in outcomes.conflicts[:ROWS]:
        changes = ", ".join(
            f"{each['field']} {each['stored']}, delivered as {each['found']}"
            for each in conflict["differences"]
        )
        console.print(Text(plain(f"  {conflict['key']}: {changes}"), "dim"))


def _show_worker(console: Console, shown: Demonstration) -> None:
    kill = shown.kill
    heading(console, "The worker")
    where = ", ".join(f"{name} at {position:,}" for name, position in kill.positions.items())
    moment = "in the middle of a transaction" if kill.in_transaction else "at work"
    console.print(f"worker {kill.pid} was killed (SIGKILL) {moment}: {where}, the log at {kill.head:,}")
    console.print(
        f"worker {kill.successor} took over {seconds(kill.taken_over_after)} later: "
        "it had to wait until the lease had run out"
    )


def _show_models(console: Console, shown: Demonstration) -> None:
    models = shown.models
    heading(console, "order_summary", counted(len(models.orders), "row"))
    states = Counter(order.status for order in models.orders)
    console.print(", ".join(f"{count:,} {state}" for state, count in states.most_common()))
    rows = table(
        "order", "status", "customer", "placed", "delivered", "paid", "items", right=("paid", "items")
    )
    for order in models.orders[:ROWS]:
        rows.add_row(
            order.order_id,
            order.status,
            cell(order.customer_id),
            _day(order.placed_at),
            _day(order.delivered_at),
            f"{cell(order.paid)} {order.currency}",
            cell(order.items),
        )
    console.print(fitted(console, rows, "customer", "items", "placed"))
    _more(console, len(models.orders), f"paid in all {cell(_total(row.paid for row in models.orders))} EUR")

    heading(console, "account_balance", counted(len(models.balances), "row"))
    rows = table("account", "balance", "opened", "lowest", "version", right=("balance", "lowest", "version"))
    for account in models.balances[:ROWS]:
        rows.add_row(
            account.account_id,
            f"{cell(account.balance)} {account.currency}",
            cell(account.opened_on),
            cell(account.lowest_balance),
            cell(account.version),
        )
    console.print(fitted(console, rows, "version", "opened"))
    _more(
        console,
        len(models.balances),
        f"balances in all {cell(_total(row.balance for row in models.balances))} EUR",
    )

    heading(console, "revenue_by_month", counted(len(models.revenue), "row"))
    rows = table("month", "orders", "revenue", right=("orders", "revenue"))
    for month in models.revenue[:ROWS]:
        rows.add_row(f"{month.month:%Y-%m}", cell(month.orders), f"{cell(month.revenue)} {month.currency}")
    console.print(rows)
    _more(
        console,
        len(models.revenue),
        f"revenue in all {cell(_total(row.revenue for row in models.revenue))} EUR",
    )


def _more(console: Console, count: int, total: str) -> None:
    more = f"and {counted(count - ROWS, 'more row')}; " if count > ROWS else ""
    console.print(f"{more}{total}", style="dim")


def _day(at: datetime | None) -> str:
    return cell(None if at is None else at.date())


def _total(amounts: Any) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = plus(total, amount)
    return total


def _show_verdict(console: Console, verdict: Verdict) -> None:
    heading(console, "Verdict")
    for check in verdict.checks:
        line = Text.assemble(
            sign(console, check.passed), f" {check.subject} ", ("equals ", "dim"), check.standard
        )
        console.print(line.append("  in all" if check.total else f"  {check.compared:,} compared", "dim"))
        if not check.passed:
            console.print(Text(f"  {plain(check.difference)}", "red"))
    console.print()
    if verdict.passed:
        console.print(
            sign(console, True), Text("Every event was folded once: the read models are right.", "bold green")
        )
    else:
        console.print(sign(console, False), Text("The read models are wrong.", "bold red"))


def _show_place(console: Console, place: Place) -> None:
    heading(console, "Kept", f"database {place.name}")
    url = shlex.quote(without_password(place.url))
    lines = []
    if place.home is not None:
        if place.home != Path(".onefold").absolute():
            lines.append(f"export ONEFOLD_HOME={shlex.quote(str(place.home))}")
        lines.append("onefold db start")
    lines += [
        f"psql {url}",
        f"ONEFOLD_DATABASE_URL={url} onefold status",
        f"ONEFOLD_DATABASE_URL={url} onefold history order/000001",
    ]
    if place.home is not None:
        lines.append("onefold db stop")
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _document(shown: Demonstration, orders: int, place: Place) -> dict[str, Any]:
    from ..demo.delivery import Disturbance

    plan, models = shown.plan, shown.models
    disturbance = Disturbance()
    return {
        "seed": shown.seed,
        "orders": orders,
        "accounts": len(shown.simulation.accounts),
        "database": {
            "name": place.name,
            "server": place.server,
            "kept": place.kept,
            "url": without_password(place.url) if place.kept else None,
        },
        "delivered": {
            "deliveries": len(plan.deliveries),
            "events": plan.events,
            "twice": plan.repeated,
            "late": plan.late,
            "overtaken_in_stream": plan.overtaken,
            "contradicting": plan.contradictions,
            "share_twice": disturbance.duplicates,
            "share_held_up": disturbance.disorder,
        },
        "outcomes": asdict(shown.outcomes),
        "worker": asdict(shown.kill),
        "read_models": {
            "order_summary": {
                "rows": len(models.orders),
                "by_status": dict(Counter(order.status for order in models.orders).most_common()),
                "paid": _total(row.paid for row in models.orders),
            },
            "account_balance": {
                "rows": len(models.balances),
                "balance": _total(row.balance for row in models.balances),
            },
            "revenue_by_month": [month._asdict() for month in models.revenue],
        },
        "lag": asdict(shown.lag),
        "status": status_document(shown.status),
        "verdict": {
            "equal": shown.verdict.passed,
            "first_difference": shown.verdict.first_difference or None,
            "checks": [
                {
                    "subject": check.subject,
                    "standard": check.standard,
                    "compared": check.compared,
                    "equal": check.passed,
                    "difference": check.difference or None,
                }
                for check in shown.verdict.checks
            ],
        },
        "seconds": round(shown.seconds, 3),
    }
