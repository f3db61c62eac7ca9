"""`onefold db`: the database itself, and the embedded server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import typer
from rich.console import Console
from rich.text import Text

from ...domain.errors import OnefoldError
from ..connection import connected, without_password
from ..embedded import EmbeddedServer, ServerStatus, database_url
from ..postgres.migrate import applied, migrate, pending
from ..settings import DATABASE_URL, Settings
from .groups import Command, Group
from .options import AsJson
from .output import cell, moment, plain, report, sign, table, write_json
from .problems import PROBLEMS, WrongUse

group = typer.Typer(
    name="db",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Find, start, stop and migrate the database.",
)


class NotRunning(OnefoldError):
    """The embedded server is asked for and does not run."""


@group.command("url", cls=Command)
def url(json: AsJson = False) -> None:
    """Print the URL of the database, for psql and other programs.

    That of ONEFOLD_DATABASE_URL, else of the embedded server if it runs.
    """
    settings = Settings.from_env()
    found = settings.database_url or _server(settings).status().url
    if found is None:
        raise NotRunning(
            f"expected the embedded server of {settings.home} to run, found it stopped; "
            "start it with `onefold db start`"
        )
    if json:
        write_json({"url": found})
    else:
        typer.echo(found)


@group.command("start", cls=Command)
def start(json: AsJson = False) -> None:
    """Start the embedded server, migrate its database, and leave it running until `onefold db stop`."""
    settings = Settings.from_env()
    if settings.database_url is not None:
        raise WrongUse(f"{DATABASE_URL} names a server of your own; unset it to start the embedded one")
    server = _server(settings)
    found = server.start()
    with connected(found) as connection:
        migrate(connection)
    if json:
        write_json({"url": found, "pid": server.status().pid})
        return
    console = report()
    console.print(
        sign(console, True), f"running until `onefold db stop`, with its data in {plain(server.data)}"
    )
    console.print(Text(found), soft_wrap=True)


@group.command("stop", cls=Command)
def stop(json: AsJson = False) -> None:
    """Stop the embedded server, also under those who use it."""
    stopped = _server(Settings.from_env()).stop()
    if json:
        write_json({"stopped": stopped})
        return
    console = report()
    console.print(sign(console, True), "stopped" if stopped else "it did not run")


@group.command("migrate", cls=Command)
def migrate_database(json: AsJson = False) -> None:
    """Apply the migrations that the database has not taken yet; safe to run from several places at once."""
    with database_url(Settings.from_env()) as found, connected(found) as connection:
        steps = [str(step) for step in migrate(connection)]
        name = connection.info.dbname
    if json:
        write_json({"database": name, "applied": steps})
        return
    console = report()
    for step in steps:
        console.print(sign(console, True), f"applied {step}")
    if not steps:
        console.print(sign(console, True), f"database {plain(name)} is up to date")


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """What is known about a database; `problem` says why the rest is not."""

    reachable: bool
    name: str | None
    server: str | None
    url: str | None
    migrations: list[dict[str, Any]]
    pending: list[str]
    problem: str | None = None


@group.command("status", cls=Command)
def status(json: AsJson = False) -> None:
    """Tell where the database is, whether it runs, and which migrations it has. Starts nothing."""
    settings = Settings.from_env()
    embedded = None if settings.database_url is not None else _server(settings).status()
    found = settings.database_url if embedded is None else embedded.url
    database = DatabaseStatus(False, None, None, None, [], []) if found is None else _look(found)
    if json:
        write_json({"embedded": embedded, "database": database})
    else:
        _show(report(), embedded, database)
    if database.problem is not None:
        raise typer.Exit(PROBLEMS)


def _server(settings: Settings) -> EmbeddedServer:
    return EmbeddedServer(settings.home)


def _look(found: str) -> DatabaseStatus:
    shown = without_password(found)
    try:
        with connected(found) as connection:
            number = connection.info.server_version
            name, server = connection.info.dbname, f"{number // 10000}.{number % 10000}"
            try:
                taken = [
                    {"number": step.number, "name": step.name, "applied_at": step.applied_at}
                    for step in applied(connection)
                ]
                missing = [str(step) for step in pending(connection)]
            except OnefoldError as error:
                return DatabaseStatus(True, name, server, shown, [], [], str(error))
    except psycopg.OperationalError as error:
        return DatabaseStatus(False, None, None, shown, [], [], " ".join(str(error).split()))
    return DatabaseStatus(True, name, server, shown, taken, missing)


def _show(console: Console, embedded: ServerStatus | None, database: DatabaseStatus) -> None:
    lines = table("", "")
    lines.show_header = False
    if embedded is not None:
        state = (
            f"runs with pid {embedded.pid}" if embedded.running else "stopped; `onefold db start` starts it"
        )
        lines.add_row("embedded server", state)
        lines.add_row("data", plain(embedded.data_directory))
        lines.add_row("PostgreSQL", cell(embedded.version))
    if database.url is not None:
        lines.add_row("database", plain(database.url))
    if embedded is None and database.reachable:
        lines.add_row("PostgreSQL", cell(database.server))
    if database.reachable and database.problem is None:
        for step in database.migrations:
            lines.add_row(
                f"migration {step['number']:04}",
                f"{plain(step['name'])}, applied {moment(step['applied_at'])}",
            )
        for missing in database.pending:
            lines.add_row("pending", f"{missing}; `onefold db migrate` applies it")
    console.print(lines)
    if database.problem is not None:
        console.print(sign(console, False), plain(database.problem))
