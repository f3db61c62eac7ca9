"""The server of Redis: how it is reached, and how its errors are named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, unquote

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from .options import Options
from .port import BrokerLost, BrokerMisconfigured

_PASSING = (
    "BUSY ", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF",
    "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED",
)  # fmt: skip


class RedisServer:
    """One server, by the parts of its URL; `timeout` bounds every answer, in seconds."""

    def __init__(
        self, parts: SplitResult, options: Options, *, timeout: float = 10.0, connect_timeout: float = 5.0
    ) -> None:
        trusted = options.text("ca", "")
        try:
            port = parts.port or 6379
            database = int(parts.path.strip("/") or 0)
        except ValueError as error:
            raise options.bad("a port from 1 to 65535, and the number of a database") from error
        if not parts.hostname or database < 0 or parts.fragment:
            raise options.bad("a host, and the number of a database,")
        if trusted and parts.scheme != "rediss":
            raise options.bad("option ca with rediss: only")
        self.shown = f"{parts.hostname}:{port}"
        self._options: dict[str, Any] = {
            "host": parts.hostname,
            "port": port,
            "db": database,
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            # A command that is tried again unseen would add an entry twice, or read one that nobody gets.
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": timeout,
            "socket_connect_timeout": connect_timeout,
            "protocol": 2,
        }
        if parts.scheme == "rediss":
            self._options |= {"ssl": True, "ssl_ca_certs": trusted or None}

    def client(self) -> redis.Redis:
        """Return a client, which connects at its first command."""
        return redis.Redis(**self._options)

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn the client's errors into those of the port."""
        try:
            yield
        except (redis.AuthenticationError, exceptions.AuthorizationError) as error:
            raise BrokerMisconfigured(
                f"expected {self.shown} to let the user in, found: {error}; check user and password in the URL"
            ) from error
        except exceptions.NoPermissionError as error:
            raise BrokerMisconfigured(
                f"expected the user to be allowed what {what} needs, found: {error}; grant it the stream commands, "
                "EVALSHA and SCRIPT LOAD on these keys"
            ) from error
        except redis.ResponseError as error:
            # The client puts the number of the command before it, where there were several.
            if str(error).rpartition("caused error: ")[2].startswith(_PASSING) or isinstance(
                error,
                exceptions.ReadOnlyError
                | exceptions.OutOfMemoryError
                | exceptions.ClusterDownError
                | exceptions.TryAgainError,
            ):
                raise BrokerLost(
                    f"expected {self.shown} to serve {what}, found: {error}; try again later"
                ) from error
            raise BrokerMisconfigured(
                f"expected {self.shown} to serve {what}, found it refused: {error}; "
                "check that the names are those of streams, and that the server is Redis 6.2 or later"
            ) from error
        except (redis.RedisError, OSError) as error:
            raise BrokerLost(
                f"expected Redis at {self.shown}, found: {error}; check host, port and the server"
            ) from error


def call(client: redis.Redis, *arguments: Any) -> Any:
    """Send one command, or add it to a pipeline; the client's own types say nothing of it."""
    execute: Any = client.execute_command
    return execute(*arguments)
