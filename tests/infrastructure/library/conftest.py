"""Gives the library's unittest cases a database of their own, and its settings to applications."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from eventsourcing.persistence import InfrastructureFactory
from eventsourcing.utils import Environment

from onefold.infrastructure.postgres import Factory

MODULE = "onefold.infrastructure.postgres"


@pytest.fixture(autouse=True)
def application_environment(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """What an operator sets: every application of the test runs on its database."""
    monkeypatch.setenv("PERSISTENCE_MODULE", MODULE)
    monkeypatch.setenv("ONEFOLD_DATABASE_URL", database_url)


@pytest.fixture(autouse=True)
def factory(request: pytest.FixtureRequest, database_url: str) -> Iterator[Factory]:
    """A factory without a name; unittest cases find it, and the URL, on themselves."""
    settings = {"PERSISTENCE_MODULE": MODULE, "ONEFOLD_DATABASE_URL": database_url}
    if request.cls is not None:
        settings |= getattr(request.cls, "settings", {})
        request.cls.database_url = database_url
    made = InfrastructureFactory.construct(Environment(env=settings))
    assert isinstance(made, Factory)
    if request.cls is not None and not hasattr(request.cls, "expected_factory_class"):
        request.cls.factory = made
    yield made
    made.close()
