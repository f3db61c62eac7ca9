"""`onefold maintain`: room for new keys in the ledgers, and an end of old ones."""

from __future__ import annotations

import typer

from ..connection import connected
from ..effects.maintenance import remove_old
from ..postgres.maintenance import maintain as upkeep
from ..relaying.maintenance import remove_published
from .database import writable
from .options import AsJson
from .output import counted, plain, report, sign, write_json
from .problems import PROBLEMS

STEPS = ("made", "sealed", "retired", "detached", "dropped")


def maintain(json: AsJson = False) -> None:
    """Make partitions of the ledgers ahead, seal and retire those that are old enough, and drop what may be forgotten.

    Tasks of effects that were kept for their time, and messages that all relays have published, are removed too.
    Running consumers, effects and relays do the same every minute; this is for the time when none runs, and for an
    owner with more privileges. Nothing waits long for a lock, and no row of a ledger is deleted: a step that finds its
    lock taken is left for the next time. Exits with 1 when steps were left.
    """
    with writable() as url, connected(url, application="onefold maintain") as connection:
        done = upkeep(connection)
        removed = 0 if done.busy else remove_old(connection)
        published = 0 if done.busy else remove_published(connection)
    if json:
        write_json(
            {
                **{step: getattr(done, step) for step in STEPS},
                "skipped": [each._asdict() for each in done.skipped],
                "busy": done.busy,
                "effects_removed": removed,
                "outbox_removed": published,
            }
        )
    else:
        console = report()
        if done.busy:
            console.print("another process is at it; nothing is done here")
        for step in STEPS:
            for name in getattr(done, step):
                console.print(sign(console, True), f"{step} {plain(name)}")
        for each in done.skipped:
            who = "" if each.pid is None else f" (pid {each.pid})"
            console.print(
                sign(console, False),
                f"left for the next time: {each.step} {plain(each.partition)}: {plain(each.reason)}{who}",
            )
        if removed:
            console.print(sign(console, True), f"removed {counted(removed, 'old task')} of effects")
        if published:
            console.print(
                sign(console, True), f"removed {counted(published, 'published message')} of the outbox"
            )
        if not (
            done.busy or done.skipped or removed or published or any(getattr(done, step) for step in STEPS)
        ):
            console.print(sign(console, True), "nothing is due")
    if done.skipped:
        raise typer.Exit(PROBLEMS)
