"""`onefold serve`: the API of the bundled shop."""

from __future__ import annotations

import logging
import threading
from typing import Annotated

import typer

from ...domain.errors import OnefoldError
from ...projections.shop import app as shop
from ..brokers import MissingExtra
from ..store import connect
from .attendance import attend, log_shown, stopping
from .database import writable
from .options import LOCAL
from .output import aside
from .problems import WrongUse

PORT = 8000
log = logging.getLogger("onefold.serve")


class ServerFailed(OnefoldError):
    """The server ended before it was asked to."""


def serve(
    context: typer.Context,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address that the API is served on.")
    ] = LOCAL,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, metavar="PORT", help="0 takes a free one, and tells it in the log."
        ),
    ] = PORT,
    connections: Annotated[
        int,
        typer.Option(
            "--connections",
            min=2,
            max=1000,
            metavar="N",
            help="Connections to the database; one fewer requests are handled at once.",
        ),
    ] = 16,
) -> None:
    """Serve the API of the bundled shop until told to stop (Ctrl-C, SIGTERM).

    Orders and accounts as resources, described in /openapi.json. Each POST takes an Idempotency-Key, and may be sent
    again with it. There is no access control: do not serve it to a network that you do not trust.
    """
    try:
        import uvicorn

        from ..http.listening import listen
        from ..http.shop import shop_api
    except ImportError as error:
        raise MissingExtra(
            f"onefold serve needs a package that is not installed ({error}); install it with: "
            "pip install 'onefold[http]'"
        ) from error
    try:
        listening = listen(host, port)
    except OSError as error:
        raise WrongUse(
            f"expected an address that this machine can be reached at, found {host} port {port}: "
            f"{error.strerror or error}; name another with --host and --port"
        ) from error
    console = aside()
    with (
        listening,
        log_shown(console, debug=bool(context.obj)),
        writable() as url,
        stopping() as request,
        connect(shop, url, pool_size=connections) as store,
    ):
        server = uvicorn.Server(
            uvicorn.Config(
                shop_api(store),
                log_config=None,
                access_log=False,
                lifespan="on",
                ws="none",
                timeout_graceful_shutdown=10,
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        name, number = listening.getsockname()[:2]
        log.info("serving the shop at http://%s:%d", f"[{name}]" if ":" in name else name, number)
        try:
            attend(thread.is_alive, request, console, None)
        finally:
            asked = request.made
            if asked:
                log.info("asked to stop: finishing the requests in hand")
            server.should_exit = True
            thread.join()
    if not asked:
        raise ServerFailed("expected to serve until told to stop, found the server ended; its log says why")
