"""The program: its commands, and how what goes wrong becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import psycopg
import typer

from ...domain.errors import OnefoldError
from ...domain.point import BadPoint
from ...projections.app import UnknownConsumer, UnknownProcess, UnknownProjection
from ...projections.effect import UnknownEffect
from ..audit.explain import BadRowKey, NotExplainable
from ..audit.field import BadField
from ..audit.history import UnknownCategory
from ..audit.search import BadSearch
from ..brokers import BadBrokerURL, MissingExtra, MissingFile
from ..connection import one_line
from ..exporting.errors import ExportFileError
from ..history import UnknownLog
from ..reading import InputFileError, MappingError
from ..relaying.errors import UnknownChannel
from ..sealing.errors import BadKey, NotSealed, SealFileError, UnknownRole
from ..settings import SettingsError
from ..supervision.configuration import BadConfiguration
from . import (
    consume,
    db,
    dead_letters,
    demo,
    diff,
    doctor,
    effects,
    explain,
    export,
    grant,
    history,
    import_log,
    maintain,
    parked,
    process,
    projections,
    prove,
    reading,
    rebuild,
    relay,
    run,
    seal,
    search,
    serve,
    status,
    trace,
    up,
    verify,
)
from .application import AppNotFound
from .groups import Command, Group
from .problems import PROBLEMS, USAGE, WrongUse

INTERRUPTED = 130

MISUSES = (
    WrongUse,
    AppNotFound,
    BadBrokerURL,
    BadConfiguration,
    BadField,
    BadKey,
    BadPoint,
    BadRowKey,
    BadSearch,
    ExportFileError,
    InputFileError,
    MappingError,
    MissingExtra,
    MissingFile,
    NotExplainable,
    NotSealed,
    SealFileError,
    SettingsError,
    UnknownCategory,
    UnknownChannel,
    UnknownConsumer,
    UnknownEffect,
    UnknownLog,
    UnknownProcess,
    UnknownProjection,
    UnknownRole,
)


class Program(Group):
    """The root command: takes --debug anywhere on the line, and turns errors into exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.obj = os.environ.get("ONEFOLD_DEBUG", "").lower() not in ("", "0", "no", "false")
        if "--debug" in args[:end]:
            args.remove("--debug")
            ctx.obj = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (OnefoldError, psycopg.Error, KeyboardInterrupt) as error:
            if ctx.obj:
                traceback.print_exc()
            text, code = explained(error)
            sys.stderr.write(f"onefold: {text}\n")
            raise typer.Exit(code) from None


def explained(error: BaseException) -> tuple[str, int]:
    """Return what to say about an error, and the exit code."""
    match error:
        case KeyboardInterrupt():
            return "interrupted", INTERRUPTED
        case OnefoldError():
            return str(error), USAGE if isinstance(error, MISUSES) else PROBLEMS
        case psycopg.OperationalError() if error.sqlstate is None or error.sqlstate.startswith(
            ("08", "28", "3D")
        ):
            reason = one_line(error)
            hint = "check ONEFOLD_DATABASE_URL, or unset it to use the embedded server"
            return f"cannot reach the database: {reason}; {hint}", PROBLEMS
        case _:
            return f"the database refused: {one_line(error)} ({type(error).__name__})", PROBLEMS


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onefold {version('onefold')}")
        raise typer.Exit


app = typer.Typer(
    name="onefold",
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(epilog="Exit codes: 0 done, 1 found problems, 2 wrong use, 130 interrupted.")
def onefold(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    _debug: Annotated[
        bool,
        typer.Option("--debug", help="Show where an error came from. Also: ONEFOLD_DEBUG=1."),
    ] = False,
) -> None:
    """Event-sourced aggregates on PostgreSQL, each event folded once.

    Works on the database in ONEFOLD_DATABASE_URL; without it, on a private server in ONEFOLD_HOME (default .onefold).
    """


app.command("demo", cls=Command)(demo.demo)
app.command("import", cls=Command)(reading.read_in)
app.command("run", cls=Command)(run.run)
app.command("consume", cls=Command)(consume.consume)
app.command("process", cls=Command)(process.process)
app.command("effects", cls=Command)(effects.effects)
app.command("relay", cls=Command)(relay.relay)
app.command("up", cls=Command)(up.up)
app.command("status", cls=Command)(status.status)
app.command("history", cls=Command)(history.history)
app.command("diff", cls=Command)(diff.diff)
app.command("explain", cls=Command)(explain.explain)
app.command("trace", cls=Command)(trace.trace)
app.command("search", cls=Command)(search.search)
app.command("seal", cls=Command)(seal.seal)
app.command("verify", cls=Command)(verify.verify)
app.command("prove", cls=Command)(prove.prove)
app.add_typer(grant.group, name="grant")
app.command("export", cls=Command)(export.export)
app.command("import-log", cls=Command)(import_log.import_log)
app.command("rebuild", cls=Command)(rebuild.rebuild)
app.add_typer(projections.group, name="projections")
app.add_typer(dead_letters.group, name="dead-letters")
app.add_typer(parked.group, name="parked")
app.command("serve", cls=Command)(serve.serve)
app.command("maintain", cls=Command)(maintain.maintain)
app.command("doctor", cls=Command)(doctor.doctor)
app.add_typer(db.group, name="db")
db.group.command("index-search", cls=Command)(search.index_search)


def main() -> None:
    """Run the command line of this process; exits with 0 done, 1 found problems, 2 wrong use, 130 interrupted."""
    app(prog_name="onefold")
