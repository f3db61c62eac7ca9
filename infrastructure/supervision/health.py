"""Health: whether an installation lives and is ready, over HTTP, with the reasons."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg

from ...domain.errors import OnefoldError
from ..connection import connected, one_line
from ..postgres.migrate import require_migrated

DATABASE_SECONDS = 2
"""Seconds that the database has to answer."""

Troubles = Callable[[], Mapping[str, str]]


class HealthUnavailable(OnefoldError):
    """Health cannot be served, as when the port is taken."""


def database_trouble(url: str) -> str | None:
    """Return what is wrong with the database, None if it answers and is migrated."""
    try:
        with connected(url, application="onefold health", connect_timeout=DATABASE_SECONDS) as connection:
            require_migrated(connection)
    except psycopg.Error as error:
        return f"cannot be reached: {one_line(error)}"
    except OnefoldError as error:
        return str(error)
    return None


@contextmanager
def serving(host: str, port: int, troubles: Troubles) -> Iterator[int]:
    """Answer `GET /live` and `GET /ready` while the body runs; yield the port.

    `/live` is 200 as long as this process answers at all. `/ready` is 200 when `troubles` is empty, else 503, with the
    troubles as JSON. Raises `HealthUnavailable`.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/live":
                    self._answer(200, {"live": True})
                case "/ready":
                    found = troubles()
                    self._answer(503 if found else 200, {"ready": not found, "troubles": dict(found)})
                case _:
                    self._answer(404, {"detail": "expected /live or /ready"})

        do_HEAD = do_GET  # noqa: N815

        def _answer(self, status: int, document: Any) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - so the library names it
            """Say nothing: a probe comes every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise HealthUnavailable(
            f"expected to serve health on {host}:{port}, found: {getattr(error, 'strerror', None) or error}; choose "
            "another port"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
