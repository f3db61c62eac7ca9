"""The `eventsourcing` library on the same server: its own recorders, application, repository and runner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import eventsourcing.application
from psycopg.conninfo import conninfo_to_dict

from .model import PeerShop, PeerShopWithSnapshots


class Peer:
    """How to start the library's applications on a database."""

    def __init__(self, url: str) -> None:
        parts = conninfo_to_dict(url)
        self.env = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": str(parts["dbname"]),
            "POSTGRES_HOST": str(parts["host"]),
            "POSTGRES_PORT": str(parts.get("port") or "5432"),
            "POSTGRES_USER": str(parts["user"]),
            "POSTGRES_PASSWORD": str(parts.get("password") or ""),
            "POSTGRES_IDLE_IN_TRANSACTION_SESSION_TIMEOUT": "0",
        }

    @contextmanager
    def application(
        self, *, pool: int = 5, snapshots: bool = False
    ) -> Iterator[eventsourcing.application.Application[UUID]]:
        """Open the application with a pool of `pool` connections."""
        env = {**self.env, "POSTGRES_POOL_SIZE": str(pool), "POSTGRES_MAX_OVERFLOW": "0"}
        with (PeerShopWithSnapshots if snapshots else PeerShop)(env) as application:
            yield application
