"""The plugin of pytest: a migrated database and a broker for each test that asks for one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..brokers.memory import MemoryBroker

# Every run of pytest loads this module, also one that has no use for it: what is heavy is imported where it is used.

_HOME = pytest.StashKey[Path]()
_GIVEN = "onefold_testing_home"
_numbers = itertools.count(1)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Have the processes of pytest-xdist share one server."""
    node.workerinput[_GIVEN] = str(_home(node.config))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the server of this run."""
    home = config.stash.get(_HOME, None)
    if home is not None and not hasattr(config, "workerinput"):
        from .databases import remove

        remove(home)


@pytest.fixture(scope="session")
def onefold_server(pytestconfig: pytest.Config) -> Iterator[str]:
    """URL of a PostgreSQL server on which databases may be made: ONEFOLD_TEST_DATABASE_URL, else one of this run."""
    from .databases import server

    with server(_home(pytestconfig)) as url:
        yield url


@pytest.fixture(scope="session")
def onefold_template(onefold_server: str) -> Iterator[str]:
    """URL of a migrated database that the others are copies of; do not connect to it."""
    from .databases import migrated

    with migrated(onefold_server) as url:
        yield url


@pytest.fixture
def onefold_database(onefold_template: str) -> Iterator[str]:
    """URL of a fresh database with Onefold's tables; dropped after the test, whoever is connected."""
    from .databases import copy_of

    with copy_of(onefold_template) as url:
        yield url


@pytest.fixture
def onefold_broker() -> Iterator[MemoryBroker]:
    """A broker in memory with a name of its own, found by `memory://` and its `name`."""
    from ..brokers.memory import MemoryBroker

    broker = MemoryBroker(f"onefold-test-{next(_numbers)}")
    yield broker
    MemoryBroker._named.pop(broker.name, None)


def _home(config: pytest.Config) -> Path:
    home = config.stash.get(_HOME, None)
    if home is None:
        given = getattr(config, "workerinput", {}).get(_GIVEN)
        if given is None:
            from .databases import new_home

            home = new_home()
        else:
            home = Path(given)
        config.stash[_HOME] = home
    return home
