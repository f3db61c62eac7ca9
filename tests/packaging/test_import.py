"""`import onefold` is cheap: what needs a database is loaded when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onefold

HEAVY = ("psycopg", "psycopg_pool", "psutil", "asyncio", "onefold.infrastructure")


def loaded_after(code: str) -> set[str]:
    """The modules of `HEAVY` that a fresh interpreter has loaded after this code."""
    program = f"import sys\n{code}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


def test_declaring_aggregates_and_projections_loads_no_client_of_the_database() -> None:
    assert loaded_after("import onefold") == set()
    assert (
        loaded_after("from onefold import Aggregate, App, Event, Handler, Projection, Row, SqlProjection")
        == set()
    )
    assert loaded_after("import onefold; dir(onefold)") == set()


def test_connecting_loads_it() -> None:
    assert {"psycopg", "onefold.infrastructure"} <= loaded_after("from onefold import connect")
    assert {"psycopg", "onefold.infrastructure"} <= loaded_after("import onefold; onefold.VersionConflict")


def test_every_public_name_is_there_and_listed() -> None:
    for name in onefold.__all__:
        assert getattr(onefold, name).__class__ is not None, name
    assert set(onefold.__all__) <= set(dir(onefold))
    names: dict[str, object] = {}
    exec("from onefold import *", names)
    assert set(onefold.__all__) <= names.keys()


def test_a_name_that_is_not_there_is_refused_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'onefold' has no attribute 'conect'"):
        _ = onefold.conect
    with pytest.raises(ImportError, match="conect"):
        exec("from onefold import conect")
