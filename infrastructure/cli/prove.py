"""`onefold prove`: proofs from seals, which can be checked without the database."""

from __future__ import annotations

from typing import Annotated

import typer

from ..connection import connected
from ..sealing.proving import prove_continuation, prove_event
from .database import readable_url
from .options import InLog
from .output import write_json
from .problems import WrongUse


def prove(
    position: Annotated[
        int | None, typer.Argument(metavar="POSITION", min=1, help="The position of the event to prove.")
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--since", metavar="SEAL", min=1, help="Prove that the seal continues this earlier one."
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--seal", metavar="SEAL", min=1, help="The seal to prove it in; by default the last."),
    ] = None,
    log: InLog = "events",
    _json: Annotated[bool, typer.Option("--json", help="A proof is JSON in any case.")] = False,
) -> None:
    """Print a proof as JSON: that an event stands in a seal, or that a seal continues an earlier one.

    docs/examples/verify_proof.py checks it with nothing but Python, against the seals that were handed out.
    """
    if (position is None) == (since is None):
        raise WrongUse(
            "expected either a POSITION or --since, found " + ("none" if position is None else "both")
        )
    with readable_url() as url, connected(url, application="onefold prove") as connection:
        if position is not None:
            proof = prove_event(connection, position, log=log, number=number)
        else:
            assert since is not None
            proof = prove_continuation(connection, since, log=log, number=number)
    write_json(proof)
