"""`onefold dead-letters`: messages and calls that failed for good, in or out, and what is done about them."""

from __future__ import annotations

import base64
import getpass
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console
from rich.text import Text

from ..connection import connected
from ..consumers import open_dead_letters
from ..consuming import dead_letters
from ..consuming.dead_letters import MANY, DeadLetter, DeadLetterError, Retried
from ..effects.dead_letters import list_effect_letters
from ..relaying.dead_letters import list_held
from . import effect_letters, outbox_letters
from .application import SHOP, load_app
from .attendance import log_shown
from .database import readable, writable
from .groups import Command, Group
from .letter_ids import Numbers, sorted_out
from .options import Application, AsJson, ForConsumer, ForSequence
from .output import aside, cell, counted, fitted, moment, plain, report, sign, table, write_json
from .problems import PROBLEMS, WrongUse

group = typer.Typer(
    name="dead-letters",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at messages and calls of effects that failed for good, try them again, or give them up.",
)

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="IDS",
        help="Dead letters as listed: a number, effect:NUMBER for a call, outbox:NUMBER for what a broker refused.",
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="All that are open.")]
By = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="WHO", help="Who decided it, for the record; this system's user when left out."
    ),
]


@group.command("list", cls=Command)
def list_(
    consumer: ForConsumer = None,
    sequence: ForSequence = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Also those that were dealt with, and how.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List dead letters in the order in which they are retried: what failed, why, and how many wait behind it.

    Those of effects stand below, with ids such as effect:7, and what brokers refused of relays, with ids such as
    outbox:7. Shows no payload; `onefold dead-letters show` does.
    """
    with readable() as connection:
        found = dead_letters.list_dead_letters(
            connection, consumer=consumer, sequence=sequence, resolved=resolved
        )
        named = bool(consumer or sequence)
        calls = [] if named else list_effect_letters(connection, resolved=resolved)
        outgoing = [] if named else list_held(connection, resolved=resolved)
    counts = [len(found), len(calls), len(outgoing)]
    if json:
        write_json(
            {
                "dead_letters": found,
                "effects": effect_letters.document(calls),
                "outbox": outbox_letters.document(outgoing),
                "complete": max(counts) < MANY,
            }
        )
        return
    console = report()
    rows = table(
        "id",
        "consumer",
        "outcome",
        "sequence",
        "version",
        "type",
        "died",
        "attempts",
        "behind",
        "cause",
        "key",
        "resolution",
        right=("id", "version", "attempts", "behind"),
    )
    for each in found:
        rows.add_row(
            Text(str(each.id), "bold"),
            plain(each.consumer),
            each.outcome,
            cell(each.sequence),
            "–" if each.version is None else str(each.version),
            cell(each.type),
            cell(each.dead_at),
            cell(each.attempts),
            cell(each.behind),
            plain(each.cause),
            cell(each.key_text),
            "–" if each.resolution is None else f"{each.resolution} by {plain(each.resolved_by or '')}",
        )
    if found:
        spare = (
            ("key", "attempts", "type", "died")
            if resolved
            else ("resolution", "key", "attempts", "type", "died")
        )
        console.print(fitted(console, rows, *spare))
    if calls:
        console.print(effect_letters.listing(console, calls))
    if outgoing:
        console.print(outbox_letters.listing(console, outgoing))
    more = " or more" if MANY in counts else ""
    console.print(Text(f"{counted(sum(counts), 'dead letter')}{more}", "dim"))


@group.command("show", cls=Command)
def show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="The dead letter, as listed.")],
    json: AsJson = False,
) -> None:
    """Show one dead letter with all that is known of it: cause, attempts, headers, and the body as it arrived."""
    numbers = sorted_out([letter])
    if numbers.calls or numbers.outgoing:
        with readable() as connection:
            if numbers.calls:
                effect_letters.show(connection, numbers.calls[0], json)
            else:
                outbox_letters.show(connection, numbers.outgoing[0], json)
        return
    with readable() as connection:
        found = _found(connection, numbers.messages)[0]
        body, headers = dead_letters.message_of(connection, found.id)
    text = _text(body)
    if json:
        kept = {"body": text} if text is not None else {"body_base64": base64.b64encode(body).decode()}
        write_json({**asdict(found), "headers": headers, **kept})
        return
    console = report()
    lines = table("", "")
    lines.show_header = False
    for name, value in _facts(found):
        lines.add_row(Text(name, "dim"), value)
    for name, value in headers.items():
        lines.add_row(Text(f"header {plain(name)}", "dim"), plain(value))
    console.print(lines)
    console.print()
    if text is None:
        console.print(Text(f"body, {len(body):,} bytes, as base64", "dim"))
        console.print(Text(base64.b64encode(body).decode()), soft_wrap=True)
    else:
        console.print(Text(f"body, {len(body):,} bytes", "dim"))
        for line in text.splitlines():
            console.print(Text(plain(line)), soft_wrap=True)


@group.command("retry", cls=Command)
def retry(
    context: typer.Context,
    ids: Ids = None,
    consumer: ForConsumer = None,
    sequence: ForSequence = None,
    everything: Everything = False,
    even_expired: Annotated[
        bool,
        typer.Option(
            "--even-expired",
            help="Also expired ones, whose keys are forgotten: only if none of them was applied before.",
        ),
    ] = False,
    by: By = None,
    app: Application = SHOP,
    json: AsJson = False,
) -> None:
    """Try dead letters again, in the order of their sequence, and tell what became of each.

    Names them by number, or by --consumer, --sequence or --all. One that fails again stays a dead letter with its new
    cause, and those behind it in its sequence are left alone. What was parked behind one that is applied now goes on by
    itself. A call of an effect is made due again, with its key, for `onefold effects` to make, and a message that a
    broker refused for its relay, which publishes it and then those behind it. Exits with 1 when one is still a dead
    letter.
    """
    application = load_app(app)
    with log_shown(aside(), debug=bool(context.obj), quiet="onefold.consumer"), writable() as url:
        with connected(url) as connection:
            letters, numbers = _chosen(connection, ids, consumer, sequence, everything)
            who = _who(by)
            due = effect_letters.retry_all(connection, numbers.calls, who, even_expired=even_expired)
            due += outbox_letters.retry_all(connection, numbers.outgoing)
        done = dead_letters.retry(url, application, letters, by=who, even_expired=even_expired)
        with connected(url) as connection:
            names = sorted({each.consumer for each in letters}) if ids else [consumer] if consumer else None
            left = open_dead_letters(connection, names, sequence=sequence)
    if json:
        write_json(
            {
                "retried": [
                    {"id": each.id, "became": each.became, "resolved": _settled(each), "why": each.why}
                    for each in done
                ]
                + [
                    {"id": each.id, "became": each.became, "resolved": not each.why, "why": each.why}
                    for each in due
                ]
            }
        )
    else:
        console = report()
        for each in due:
            _tell_of_call(console, each)
        if done or not due:
            _tell(console, done, left)
    if any(each.why for each in due) or not all(_settled(each) for each in done):
        raise typer.Exit(PROBLEMS)


@group.command("discard", cls=Command)
def discard(
    ids: Ids = None,
    consumer: ForConsumer = None,
    sequence: ForSequence = None,
    everything: Everything = False,
    by: By = None,
    json: AsJson = False,
) -> None:
    """Give dead letters up for good: they never take effect, and what waits behind them goes on without them.

    Names them by number, or by --consumer, --sequence or --all. Their record stays, with who did it and when. Exits
    with 1 when one could not be given up.
    """
    done: list[tuple[int | str, str]] = []
    with writable() as url, connected(url) as connection:
        letters, numbers = _chosen(connection, ids, consumer, sequence, everything)
        for letter in letters:
            try:
                dead_letters.discard(connection, letter.id, _who(by))
            except DeadLetterError as error:
                done.append((letter.id, str(error)))
            else:
                done.append((letter.id, ""))
        if numbers.calls or numbers.outgoing:
            who = _who(by)
            dealt = effect_letters.discard_all(connection, numbers.calls, who)
            dealt += outbox_letters.discard_all(connection, numbers.outgoing, who)
            done += [(each.id, each.why) for each in dealt]
    if json:
        write_json(
            {
                "discarded": [each for each, why in done if not why],
                "left": [{"id": each, "why": why} for each, why in done if why],
            }
        )
    else:
        console = report()
        for each, why in done:
            console.print(sign(console, not why), plain(why) if why else f"discarded {each}")
        if not done:
            console.print("there are none")
    if any(why for _, why in done):
        raise typer.Exit(PROBLEMS)


def _chosen(
    connection: psycopg.Connection[Any],
    ids: Sequence[str] | None,
    consumer: str | None,
    sequence: str | None,
    everything: bool,
) -> tuple[list[DeadLetter], Numbers]:
    """Return the consumers' messages that are meant, and the numbers of all."""
    named = bool(consumer or sequence)
    if bool(ids) + named + everything != 1:
        raise WrongUse(
            "expected dead letters by number, or by --consumer and --sequence, or --all, found "
            f"{'none of these' if not (ids or named or everything) else 'several of these'}; say which are meant"
        )
    if ids:
        numbers = sorted_out(ids)
        effect_letters.of_numbers(connection, numbers.calls)
        outbox_letters.of_numbers(connection, numbers.outgoing)
        return _found(connection, numbers.messages) if numbers.messages else [], numbers
    letters = dead_letters.list_dead_letters(connection, consumer=consumer, sequence=sequence)
    if named:
        return letters, Numbers([each.id for each in letters], [], [])
    calls = [each.id for each in list_effect_letters(connection)]
    return letters, Numbers([each.id for each in letters], calls, [each.id for each in list_held(connection)])


def _found(connection: psycopg.Connection[Any], ids: Sequence[int]) -> list[DeadLetter]:
    found = dead_letters.list_dead_letters(connection, ids=ids, resolved=True)
    missing = sorted(set(ids) - {each.id for each in found})
    if missing:
        raise DeadLetterError(
            f"expected numbers of dead letters, found {', '.join(map(str, missing))}; "
            "`onefold dead-letters list --resolved` shows those there are"
        )
    return found


def _who(by: str | None) -> str:
    if by is not None and not by.strip():
        raise WrongUse("expected a name after --by, found none; leave it out for this system's user")
    try:
        return by or getpass.getuser()
    except (OSError, KeyError) as error:
        raise WrongUse("this system has no name for its user; say who decides with --by") from error


def _tell_of_call(console: Console, each: effect_letters.Dealt) -> None:
    why = f": {plain(each.why)}" if each.why else ""
    console.print(sign(console, not each.why), f"{each.id} {each.became}{why}")


def _tell(console: Console, done: Sequence[Retried], left: int) -> None:
    for each in done:
        why = f": {plain(each.why)}" if each.why else ""
        console.print(sign(console, _settled(each)), f"{each.id} {each.became.replace('_', ' ')}{why}")
    resolved = sum(each.resolved for each in done)
    words = f"{counted(resolved, 'dead letter')} resolved, {left:,} left" if done else "there are none"
    console.print(Text(words, "dim"))


def _settled(each: Retried) -> bool:
    """Tell whether it is no dead letter any more, whoever has dealt with it."""
    return each.resolved or each.became == "gone"


def _facts(found: DeadLetter) -> list[tuple[str, str]]:
    facts: list[tuple[str, object]] = [
        ("dead letter", str(found.id)),
        ("consumer", found.consumer),
        ("outcome", found.outcome),
        ("cause", found.cause),
        ("attempts", found.attempts),
        ("sequence", found.sequence),
        ("version", None if found.version is None else str(found.version)),
        ("waiting behind it", found.behind),
        ("type", found.type),
        ("message", found.message_id),
        ("key", found.key_text),
        ("from", found.place),
        ("published", None if found.published_at is None else moment(found.published_at)),
        ("first seen", moment(found.first_seen)),
        ("died", moment(found.dead_at)),
    ]
    if found.resolved_at is not None:
        facts.append(("resolved", f"{found.resolution} by {found.resolved_by}, {moment(found.resolved_at)}"))
    return [(name, cell(value)) for name, value in facts]


def _text(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None
