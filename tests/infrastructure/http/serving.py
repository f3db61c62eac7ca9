"""A real server on a free port of this machine, in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from onefold.infrastructure.http.listening import listen


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an ASGI application, and yield its URL."""
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="on", log_config=None, timeout_graceful_shutdown=5, ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        listening.close()
