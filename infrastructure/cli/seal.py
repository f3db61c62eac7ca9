"""`onefold seal`: hashes and seals over what stands in a log."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ...domain.seal import Seal
from ..connection import connected
from ..sealing.following import EVERY
from ..sealing.following import follow as keep_sealing
from ..sealing.sealer import Sealed, Sealer, Signs
from .attendance import log_shown, stopping
from .database import writable
from .options import AsJson, InLog
from .output import aside, counted, plain, progress, report, sign, write_json
from .problems import PROBLEMS, WrongUse

PATIENCE = 10.0
"""Seconds for which an append that is open is waited for."""

log_of_seals = logging.getLogger("onefold.seal")


def seal(
    context: typer.Context,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="Hand seals out: append each to this file, out of reach of the database's administrators.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="Sign with the private Ed25519 key in this PEM file."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on sealing as the log grows, until told to stop.")
    ] = False,
    every: Annotated[
        float,
        typer.Option("--every", min=0.05, metavar="SECONDS", help="With --follow: how often to look."),
    ] = EVERY,
    log: InLog = "events",
    json: AsJson = False,
) -> None:
    """Hash and seal what stands in the log and is closed, so that `onefold verify` finds any later change of it.

    Works behind the writers, who do not wait for it. Exits with 1 when an open append kept it from sealing all, or what
    is there does not fit together.
    """
    signer = None if key is None else _signer(key)
    if follow:
        with log_shown(aside(), debug=bool(context.obj)), writable() as url, stopping() as request:
            done = keep_sealing(
                url, lambda: request.made, name=log, to=to, signer=signer, every=every, progress=_tell
            )
        done = dataclasses.replace(done, waiting=False, busy=False)
    else:
        if every != EVERY:
            raise WrongUse("expected --follow with --every, found none")
        done = _once(log, to, signer, json)
    if json:
        write_json(done)
    else:
        _show(done, log, to)
    if done.waiting or done.busy:
        raise typer.Exit(PROBLEMS)


def _once(log: str, to: Path | None, signer: Signs | None, json: bool) -> Sealed:
    with (
        writable() as url,
        connected(url, application="onefold seal") as connection,
        progress(aside(), wanted=not json) as bars,
    ):
        task = bars.add_task("sealing", total=None)

        def show(made: Seal) -> None:
            bars.update(task, description=f"seal {made.number:,}, position {made.last:,}")

        return Sealer(connection, log=log, to=to, signer=signer).run(patience=PATIENCE, progress=show)


def _signer(file: Path) -> Signs:
    from ..sealing.signing import signer_of

    return signer_of(file)


def _tell(made: Seal) -> None:
    log_of_seals.info("seal %d: %s up to position %d", made.number, counted(made.events, "event"), made.last)


def _show(done: Sealed, log: str, to: Path | None) -> None:
    console = report()
    if done.busy:
        console.print(sign(console, False), f"another sealer is at log {plain(log)}; nothing is done here")
        return
    console.print(
        sign(console, True),
        f"{counted(done.seals, 'seal')} of {counted(done.events, 'event')} made; log {plain(log)} is sealed up to "
        f"position {done.upto:,}",
        soft_wrap=True,
    )
    if to is not None:
        console.print(
            sign(console, True),
            f"{counted(done.handed_out, 'seal')} handed out to {plain(to)}",
            soft_wrap=True,
        )
    if done.waiting:
        console.print(
            sign(console, False), "an append is open in front of the rest; `onefold status` names it"
        )
    if to is None and done.seals:
        console.print(
            Text("Seals that stay in the database prove little against its administrators: see --to.", "dim"),
            soft_wrap=True,
        )
