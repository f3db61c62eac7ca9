"""A wire between clients and the server that can be cut at a chosen moment."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Wire:
    """Passes bytes between clients and the server, and can be cut at a chosen moment.

    `lose_answer_to(tag)` swallows the server's next answer that holds `tag` (as `INSERT 0`) and hangs up; what the
    server did stands. `cut()` hangs up on every client at once, while the server's side stays open.
    """

    def __init__(self, url: str, folder: Path) -> None:
        parts = conninfo_to_dict(url)
        self._server = f"{parts['host']}/.s.PGSQL.{parts['port']}"
        self.url = make_conninfo(url, host=str(folder))
        self.lost = threading.Event()
        self._tag: bytes | None = None
        self._ends: list[socket.socket] = []
        self._clients: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / f".s.PGSQL.{parts['port']}"))
        self._listener.listen()
        self._start(self._accept)

    def lose_answer_to(self, tag: bytes) -> None:
        self.lost.clear()
        self._tag = tag

    def cut(self) -> None:
        for client in self._clients:
            hang_up(client)
        self._clients.clear()

    def close(self) -> None:
        hang_up(self._listener)
        for end in self._ends:
            hang_up(end)
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._ends += [client, server]
                self._clients.append(client)
                self._start(self._pass, client, server, False)
                self._start(self._pass, server, client, True)

    def _pass(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if from_server and self._tag is not None and self._tag in data:
                    self._tag = None
                    hang_up(target)
                    self.lost.set()
                    return
                target.sendall(data)
        if from_server:
            hang_up(target)


def hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
