"""`onefold explain`: why a row of a read model says what it says."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ...domain.change import plain as plain_value
from ...domain.event import EventMeta
from ...projections.explanation import Touch
from ..audit.explain import RowExplanation, explain_row, key_of_texts, projection_of
from .application import SHOP, load_app
from .changes import change_document, change_lines, presentable, shown
from .database import readable
from .history import headline
from .options import Application, AsJson
from .output import counted, heading, moment, plain, report, sign, table, write_json
from .problems import PROBLEMS


def explain(
    read_model: Annotated[
        str, typer.Argument(metavar="READ_MODEL", help="The read model, such as read.order_summary.")
    ],
    key: Annotated[
        list[str], typer.Argument(metavar="KEY…", help="The key of the row, a value for each key field.")
    ],
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Tell why a row of a read model says what it says: the events that set each column, and what was not applied.

    The row is folded anew, event by event, up to where the projection is. Exits with 1 when the table says something
    else, or the projection stands before an event of this row that it cannot apply.
    """
    application = load_app(app)
    projection = projection_of(application, read_model)
    chosen = key_of_texts(projection, key)
    with readable() as connection:
        found = explain_row(connection, application, projection, chosen)
    if json:
        write_json(_document(found))
    else:
        _show(report(), found)
    if not found.agrees or any(touch.effect == "failed" for touch in found.explanation.touches):
        raise typer.Exit(PROBLEMS)


def _document(found: RowExplanation) -> dict[str, Any]:
    return {
        "read_model": f"read.{found.projection}",
        "key": presentable(found.key),
        "row": None if found.stored is None else presentable(plain_value(found.stored)),
        "row_position": found.row_position,
        "checkpoint": found.position,
        "current": found.current,
        "failure": found.failure,
        "agrees": found.agrees,
        "differences": [change_document(change) for change in found.differences],
        "columns": {
            name: [_place(touch.event.meta, touch.event.event_name) for touch in chain]
            for name, chain in found.explanation.chains.items()
        },
        "events": [
            {
                **_place(touch.event.meta, touch.event.event_name),
                "effect": touch.effect,
                "reason": touch.reason or None,
                "changes": [change_document(change) for change in touch.columns],
            }
            for touch in found.explanation.touches
        ],
        "passed": [
            {
                "stream": passed.event.stream,
                "version": passed.event.version,
                "position": passed.event.position,
                "type": passed.event.type,
                "why": passed.why,
                "reason": passed.reason or None,
            }
            for passed in found.passed
        ],
        "consumer": found.consumer,
        "standings": found.standings,
        "waiting": found.waiting,
        "outcomes_of_all_sequences": found.outcomes,
    }


def _place(meta: EventMeta, name: str) -> dict[str, Any]:
    return {
        "stream": meta.stream,
        "version": meta.version,
        "position": meta.position,
        "type": name,
        "event_id": meta.event_id,
        "occurred_at": meta.occurred_at,
        "recorded_at": meta.recorded_at,
    }


def _show(console: Console, found: RowExplanation) -> None:
    key = ", ".join(map(str, found.key))
    console.print(
        Text.assemble((f"read.{found.projection}  {plain(key)}", "bold"), f"  {_where(found)}"),
        soft_wrap=True,
    )
    console.print()
    if found.stored is None:
        console.print("there is no such row")
    else:
        rows = table("column", "value", "set by", "before that by")
        for name, value in found.stored.__dict__.items():
            chain = found.explanation.chains.get(name, ())
            rows.add_row(
                Text(plain(name), "bold"),
                shown(plain_value(value)),
                _by(chain[-1]) if chain else "–",
                ", ".join(_by(touch) for touch in chain[-2::-1]) or "–",
            )
        console.print(rows)
    _judge(console, found)
    _events(console, found)
    _inbox(console, found)


def _where(found: RowExplanation) -> str:
    if found.consumer is not None:
        return f"folded by consumer {plain(found.consumer)} from messages, which are not in the log"
    if found.position is None:
        return "the projection was never run"
    return f"checkpoint at position {found.position:,}"


def _by(touch: Touch) -> str:
    return f"{plain(touch.event.event_name)} v{touch.event.meta.version}"


def _judge(console: Console, found: RowExplanation) -> None:
    if not found.current:
        console.print(
            sign(console, False),
            "the table was built by another declaration; `onefold rebuild` makes it anew",
        )
    if found.consumer is not None:
        return
    if found.agrees:
        console.print(sign(console, True), "folding the events anew gives the same")
        return
    console.print(sign(console, False), "folding the events anew gives something else (table, then fold):")
    for line in change_lines(console, found.differences):
        console.print("      ", line, soft_wrap=True)


def _events(console: Console, found: RowExplanation) -> None:
    touches = found.explanation.touches
    if touches:
        heading(console, "Events that were applied", counted(len(touches), "event"))
    for touch in touches:
        meta = touch.event.meta
        changed = ", ".join(plain(change.path) for change in touch.columns)
        words = {
            "made": f"made the row: {changed}",
            "changed": f"changed {changed}",
            "unchanged": "changed nothing",
            "removed": "removed the row",
            "failed": f"failed: {plain(touch.reason)}",
        }[touch.effect]
        console.print(
            Text.assemble(
                (f"{plain(meta.stream)} v{meta.version}  ", "bold cyan"),
                (plain(touch.event.event_name), "bold"),
                f"  {words}",
                (f"  position {meta.position:,}, occurred {moment(meta.happened)}", "dim"),
            ),
            soft_wrap=True,
        )
    if found.passed:
        heading(console, "Events that were not applied", counted(len(found.passed), "event"))
    for passed in found.passed:
        event = passed.event
        headline(console, event, f"{plain(event.stream)} v{event.version}  ", passed.why)
        if passed.reason:
            console.print(Text(f"      {plain(passed.reason)}"), soft_wrap=True)
    if found.failure is not None:
        heading(console, "The projection stands before an event that it cannot apply")
        console.print(
            Text(
                plain(
                    f"{found.failure.get('type_name')} (stream {found.failure.get('stream')}, version "
                    f"{found.failure.get('version')}): {found.failure.get('reason')}"
                )
            ),
            soft_wrap=True,
        )


def _inbox(console: Console, found: RowExplanation) -> None:
    if found.standings or found.waiting or found.outcomes:
        heading(console, "Messages of consumers")
    for standing in found.standings:
        state = "" if standing.state is None else f", state {plain(standing.state)}"
        console.print(
            f"{plain(standing.consumer)} has applied {plain(standing.sequence)} up to version {standing.version}{state}"
            f", {counted(standing.parked, 'message')} parked",
            soft_wrap=True,
        )
    for message in found.waiting:
        number = f" {message.number}" if message.kind == "dead letter" else ""
        end = "" if message.resolution is None else f", resolved: {message.resolution}"
        version = "" if message.version is None else f" version {message.version}"
        console.print(
            Text.assemble(
                (f"{message.kind}{number}", "yellow"),
                f" at {plain(message.consumer)}: {plain(message.type or 'unknown type')}{version}  "
                f"{plain(message.reason)}{end}",
                (f"  {moment(message.at)}", "dim"),
            ),
            soft_wrap=True,
        )
    for consumer, outcomes in found.outcomes.items():
        words = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
        console.print(Text(f"{plain(consumer)}, of all its sequences: {words}", "dim"), soft_wrap=True)
