"""A wire to a server that a test can cut, hold up and mend."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK = 65536
POLL_SECONDS = 0.05


class Proxy:
    """Passes on what comes to `port` of 127.0.0.1 to a target's port, which may be set after the proxy was made.

    Clients whose wire was cut find their connection ended, and new ones refused, until it is mended.
    """

    def __init__(self, target: int | None = None) -> None:
        self.target = target
        self.port = 0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._guard = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._open = threading.Event()
        self._acceptor: threading.Thread | None = None
        self._pumps: list[threading.Thread] = []
        self.mend()

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        self._open.clear()
        if self._acceptor is not None:
            self._acceptor.join()
            self._acceptor = None
        with self._guard:
            pairs = list(self._pairs)
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Take new connections again, at the same port; nothing happens to a wire that is not cut."""
        if self._acceptor is not None:
            return
        listener = socket.create_server(("127.0.0.1", self.port))
        listener.settimeout(POLL_SECONDS)
        self.port = listener.getsockname()[1]
        self._open.set()
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        self._acceptor.start()

    def freeze(self) -> None:
        """Hold up all that is sent, either way, without ending any connection."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass on what was held up, and all that follows."""
        self._flowing.set()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        with self._guard:
            return len(self._pairs)

    def close(self) -> None:
        self.cut()
        self._flowing.set()
        for pump in self._pumps:
            pump.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while self._open.is_set():
                try:
                    client, _ = listener.accept()
                except TimeoutError:
                    continue
                try:
                    assert self.target is not None
                    server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                except OSError:
                    client.close()
                    continue
                for end in (client, server):
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pair = (client, server)
                with self._guard:
                    self._pairs.add(pair)
                back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
                forth = threading.Thread(target=self._serve, args=(pair, back), daemon=True)
                self._pumps = [pump for pump in self._pumps if pump.is_alive()]
                self._pumps.append(forth)
                back.start()
                forth.start()

    def _serve(self, pair: tuple[socket.socket, socket.socket], back: threading.Thread) -> None:
        self._pump(*pair)
        back.join()
        with self._guard:
            self._pairs.discard(pair)
        for end in pair:
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                self._flowing.wait()
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
