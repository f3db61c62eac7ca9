"""Gives the library's unittest cases a database of their own, and its settings to applications."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from eventsourcing.persistence import InfrastructureFactory
from eventsourcing.utils import Environment
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onefold.infrastructure.postgres import Factory

MODULE = "onefold.infrastructure.postgres"
MakeFactory = Callable[..., Factory]


@pytest.fixture(autouse=True)
def application_environment(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """What an operator sets: every application of the test runs on its database."""
    monkeypatch.setenv("PERSISTENCE_MODULE", MODULE)
    monkeypatch.setenv("ONEFOLD_DATABASE_URL", database_url)


@pytest.fixture
def make_factory(database_url: str) -> Iterator[MakeFactory]:
    """Makes factories on the test's database, closed at its end: `make_factory(name, SETTING=value, ...)`."""
    with contextlib.ExitStack() as made:

        def make(name: str = "", **settings: str) -> Factory:
            env = {"PERSISTENCE_MODULE": MODULE, "ONEFOLD_DATABASE_URL": database_url, **settings}
            factory = InfrastructureFactory.construct(Environment(name, env))
            assert isinstance(factory, Factory)
            made.callback(factory.close)
            return factory

        yield make


@pytest.fixture(autouse=True)
def factory(request: pytest.FixtureRequest, make_factory: MakeFactory, database_url: str) -> Factory:
    """A factory without a name; a unittest case finds it on itself, with the `settings` that the case names."""
    made = make_factory(**getattr(request.cls, "settings", {}))
    if request.cls is not None:
        request.cls.database_url = database_url
        # The cases about factories make their own.
        if not hasattr(request.cls, "expected_factory_class"):
            request.cls.factory = made
    return made


@pytest.fixture
def recorder(factory: Factory) -> Any:
    """An application recorder on a log of its own."""
    return factory.application_recorder()


@pytest.fixture
def other(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection of someone else, with transactions of their own making."""
    with psycopg.connect(database_url) as opened:
        yield opened
        opened.rollback()


class Proxy:
    """Stands between client and server; can lose an answer after the server has done its work."""

    def __init__(self, database_url: str) -> None:
        parameters = conninfo_to_dict(database_url)
        self._host, self._port = str(parameters["host"]), int(parameters.get("port") or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = make_conninfo(database_url, host="127.0.0.1", port=port, sslmode="disable")
        self._lose: bytes | None = None
        self.lost = 0
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def lose(self, marker: bytes) -> None:
        """Cut the connection in place of the next answer that contains `marker`."""
        self._lose = marker

    def cut(self) -> None:
        """Cut every connection now, without a word."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _connect(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server

    def _start(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            self._sockets += (client, server)
            self._start(self._forward, client, server, False)
            self._start(self._forward, server, client, True)

    def _forward(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self._lose is not None and self._lose in data:
                    self._lose = None
                    self.lost += 1
                    break
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """A way to the server that can lose answers; its address is `proxy.url`."""
    made = Proxy(database_url)
    yield made
    made.close()
