"""A server of the desk that is killed at one step of a request: URL of the database, claim, step, lease."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import Response

from onefold.infrastructure.http import claims
from onefold.infrastructure.http.listening import listen
from onefold.infrastructure.store import connect
from onefold.projections.shop import app as shop

from .desk import Desk


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingDesk(Desk):
    """Dies in the handler, after it has worked and before it answers."""

    def _answer(self, request: Request) -> Response:
        if "outside" in request.query_params:
            with self.store.pool.connection() as connection:
                connection.execute("INSERT INTO runs (path) VALUES ('outside')")
        if STEP == "in the handler":
            die()
        return super()._answer(request)


def main(url: str, claim: Any, lease: float) -> None:
    finish = claims.Work.finish
    keep = claims.Work._keep

    def dying_finish(self: Any, response: Any) -> Any:
        if STEP == "before the response is kept":
            die()
        kept = finish(self, response)
        if STEP == "after the commit":
            die()
        return kept

    def dying_keep(self: Any, connection: Any, response: Any) -> Any:
        kept = keep(self, connection, response)
        if STEP == "before the commit":
            die()
        return kept

    claims.Work.finish = dying_finish  # type: ignore[method-assign]
    claims.Work._keep = dying_keep  # type: ignore[method-assign]
    logging.basicConfig(level=logging.WARNING)
    listening = listen("127.0.0.1", 0)
    with connect(shop, url, pool_size=6) as store:
        app = DyingDesk(store).app(claim=claim, lease=lease)
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none")).run(sockets=[listening])


if __name__ == "__main__":
    STEP = sys.argv[3]
    main(sys.argv[1], sys.argv[2], float(sys.argv[4]))
