"""Applications behind the middleware, whose handlers leave a row for each time that they work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from onefold.domain.account import Account
from onefold.infrastructure.http import (
    IdempotencyKey,
    async_transaction,
    forget,
    transaction,
)
from onefold.infrastructure.store import Store

NEW = object()


class Desk:
    """Handlers that do what the query asks for. `runs` are the requests that were handled, in order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs: deque[str] = deque()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def app(self, **options: Any) -> Starlette:
        paths: dict[str, Callable[..., Any]] = {
            "/work": self.work,
            "/work/{number}": self.work,
            "/async": self.async_work,
            "/stream": self.stream,
            "/outside": self.outside,
        }
        app = Starlette(
            routes=[
                Route(path, handler, methods=["GET", "POST", "PUT", "PATCH"])
                for path, handler in paths.items()
            ]
        )
        app.add_middleware(IdempotencyKey, store=self.store, **options)
        return app

    def _begin(self, request: Request) -> None:
        self.runs.append(f"{request.method} {request.url.path}")
        self.reached.set()
        assert self.gate.wait(30)
        time.sleep(float(request.query_params.get("sleep", 0)))

    def _answer(self, request: Request) -> Response:
        asked = request.query_params
        if "raise" in asked:
            raise LookupError("as it was asked")
        if "forget" in asked:
            forget(request)
        size = int(asked.get("size", 0))
        if size:
            return PlainTextResponse("x" * size)
        status = int(asked.get("status", 200))
        if status == 204:
            return Response(status_code=status)
        headers = {"Location": "/work/1", "X-Secret": "of this one", "Set-Cookie": "a=b"}
        return JSONResponse({"run": len(self.runs)}, status, headers)

    def work(self, request: Request) -> Response:
        self._begin(request)
        if "tx" in request.query_params:
            tx = transaction(request)
            tx.execute("INSERT INTO runs (path) VALUES (%s)", (request.url.path,))
            if "account" in request.query_params:
                key = request.query_params["account"]
                account = tx.find(Account, key)
                assert account is None
        return self._answer(request)

    async def async_work(self, request: Request) -> Response:
        self.runs.append("async")
        await asyncio.sleep(float(request.query_params.get("sleep", 0)))
        if "tx" in request.query_params:
            tx = await async_transaction(request)
            await tx.execute("INSERT INTO runs (path) VALUES (%s)", (request.url.path,))
        return self._answer(request)

    async def stream(self, request: Request) -> Response:
        self.runs.append("stream")
        asked = request.query_params

        async def parts() -> Any:
            for _ in range(int(asked.get("parts", 3))):
                yield b"part\n"
                await asyncio.sleep(0)

        return StreamingResponse(parts(), media_type=asked.get("type", "text/plain"))

    def outside(self, request: Request) -> Response:
        transaction(request)
        return Response()


class Client:
    """Asks a server, with a key in quotes."""

    def __init__(self, url: str) -> None:
        # A server closes a connection after an error, maybe while it is used again.
        self.http = httpx.Client(base_url=url, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))

    def post(self, path: str, key: str | None = "k1", *, method: str = "POST", **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if key is not None:
            headers["Idempotency-Key"] = f'"{key}"'
        return self.http.request(method, path, headers=headers, **more)
