"""The bundled shop on the test's database, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from onefold.infrastructure.cli.program import app
from onefold.infrastructure.store import Store, connect
from onefold.projections.shop import app as shop_app

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Onefold = Callable[..., Said]


@pytest.fixture
def onefold(database_url: str) -> Onefold:
    """Runs a command in this process on the test's database."""

    def run(*arguments: object, **env: str) -> Said:
        values = {"ONEFOLD_DATABASE_URL": database_url, "COLUMNS": "100", **env}
        result = CliRunner(env=values).invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with connect(shop_app, database_url) as opened:
        yield opened
