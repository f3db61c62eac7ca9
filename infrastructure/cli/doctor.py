"""`onefold doctor`: what is wrong with an installation, and what to do."""

from __future__ import annotations

import typer
from rich.text import Text

from ..connection import connected
from ..doctor import Finding, Severity, examine
from ..embedded import database_url
from ..settings import Settings
from .application import SHOP, load_app
from .database import require_database
from .options import Application, AsJson
from .output import plain, report, sign, write_json
from .problems import PROBLEMS


def doctor(app: Application = SHOP, json: AsJson = False) -> None:
    """Examine the database, its server and who works on it; say of each finding what to do. Changes nothing.

    Looks at clocks, settings, migrations, the guards of the log, open appends and long transactions, indexes, room in
    the ledgers, projections and consumers. Exits with 1 when there is a problem; warnings may become one.
    """
    application = load_app(app)
    settings = Settings.from_env()
    embedded = settings.database_url is None
    require_database(settings)
    with database_url(settings) as url, connected(url, application="onefold doctor") as connection:
        findings = examine(connection, application, embedded=embedded)
    problems = [each for each in findings if each.severity is Severity.PROBLEM]
    if json:
        write_json(
            {
                "sound": not problems,
                "findings": [
                    {
                        "check": each.check,
                        "severity": each.severity.value,
                        "found": each.found,
                        "advice": each.advice or None,
                    }
                    for each in findings
                ],
            }
        )
    else:
        _show(findings)
    if problems:
        raise typer.Exit(PROBLEMS)


def _show(findings: list[Finding]) -> None:
    console = report()
    for each in findings:
        mark = (
            Text("!", "yellow")
            if each.severity is Severity.WARNING
            else sign(console, each.severity is Severity.FINE)
        )
        console.print(mark, Text(f"{each.check}:", "bold"), plain(each.found))
        if each.advice:
            console.print(Text(f"    {plain(each.advice)}", "dim"))
