"""The versions of a read model: which there are, back to the one before, and how that is dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import psycopg
from psycopg.sql import SQL, Identifier

from ...projections.engine import PAGE, Engine
from ...projections.projection import Projection
from ..connection import connected
from ..postgres.columns import register
from ..postgres.pool import configure
from ..postgres.reader import LogReader
from ..postgres.readmodel import ReadModelStore, worker_name
from ..postgres.sql import statement
from .belongings import BEFORE, exists
from .errors import NoOtherVersion
from .rebuild import PATIENCE, discard, take_lock
from .swapping import BEFORE_SEGMENT, Swapper

Role = Literal["serving", "next", "before"]
_ROLES: dict[int, Role] = {0: "serving", -1: "next", -2: "before"}


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a read model: applied up to `position`, last moved at `moved_at`, built from `fingerprint`.

    Its `role` is serving, next or before. A next one has the `phase` of its rebuild, and its `failure` if it failed.
    `there` is false when somebody dropped the table.
    """

    projection: str
    role: Role
    position: int
    fingerprint: str
    owner: str | None
    moved_at: datetime
    phase: str | None = None
    failure: str | None = None
    there: bool = True


@dataclass(frozen=True, slots=True)
class Rollback:
    """What a rollback did: the version that serves now is applied up to `position`; `caught_up` tells whether it
    was brought up to the one that served before it took its place."""

    position: int
    caught_up: bool


def list_versions(connection: psycopg.Connection[Any]) -> list[Version]:
    """Return the versions of every projection of the database, serving ones first."""
    return [
        Version(
            projection,
            _ROLES[segment],
            position,
            fingerprint,
            owner,
            moved_at.astimezone(UTC),
            phase,
            failure,
            there,
        )
        for projection, segment, position, fingerprint, owner, moved_at, phase, failure, _, there in connection.execute(
            statement("rebuild_versions")
        )
    ]


def drop_old(url: str, name: str) -> None:
    """Drop the version that served before the last rebuild of a projection; raises `NoOtherVersion`."""
    with connected(url, application=f"onefold rebuild {name} control") as connection:
        take_lock(connection, name)
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '5s'")
            dropped = connection.execute(statement("rebuild_drop"), {"projection": name}).rowcount
            there = exists(connection, BEFORE, name)
            if not dropped and not there:
                raise NoOtherVersion(name)
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(BEFORE, name)))


def drop_next(url: str, name: str) -> None:
    """Drop a next version whose rebuild was broken off, or was to be looked at only; raises `RebuildRunning`."""
    with connected(url, application=f"onefold rebuild {name} control") as connection:
        take_lock(connection, name)
        with connection.transaction():
            discard(connection, name)


def rollback(
    url: str,
    projection: Projection[Any],
    *,
    patience: float = PATIENCE,
    waiting: Callable[[list[str]], None] = lambda _: None,
) -> Rollback:
    """Put the version that served before in the place of the serving one, which is kept as the one before.

    If the code is the one that built it, it is brought to the log's end first. If not, it serves from where it was
    left, until a worker of its own code brings it up. A next version that is being built is dropped. Raises
    `NoOtherVersion`, `RebuildRunning`, and `SwapBlocked` after `patience` seconds.
    """
    name, owner = projection.name, worker_name()
    with contextlib.ExitStack() as stack:
        control, writer, loader, reader = (
            stack.enter_context(connected(url, application=f"onefold rebuild {name} {role}"))
            for role in ("control", "write", "load", "read")
        )
        configure(reader)
        register(writer)
        register(loader)
        take_lock(control, name)
        found = control.execute(
            "SELECT fingerprint FROM onefold.checkpoints WHERE projection = %s AND segment = %s",
            (name, BEFORE_SEGMENT),
        ).fetchone()
        if found is None or not exists(control, BEFORE, name):
            raise NoOtherVersion(name)
        with control.transaction():
            discard(control, name)
        same = found[0] == projection.fingerprint()
        catch_up: Callable[[], int] | None = None
        if same:
            log_reader = LogReader(reader, log=projection.log, registry=projection.registry)
            model = ReadModelStore(
                projection, writer, loader, log_reader, owner=owner, segment=BEFORE_SEGMENT, schema=BEFORE
            )
            engine = Engine(projection, log_reader, model, page=PAGE)
            stack.callback(_release, model)

            def catch() -> int:
                return engine.run().position

            catch_up = catch
        Swapper(projection, control, owner).swap(BEFORE_SEGMENT, catch_up, patience=patience, waiting=waiting)
        serving = control.execute(
            "SELECT position FROM onefold.checkpoints WHERE projection = %s AND segment = 0", (name,)
        ).fetchone()
        return Rollback(0 if serving is None else serving[0], same)


def _release(model: ReadModelStore) -> None:
    with contextlib.suppress(psycopg.Error):
        model.release()
