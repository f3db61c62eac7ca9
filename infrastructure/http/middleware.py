"""The middleware: requests with an `Idempotency-Key` are done once, and answered as often as they come."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import math
import re
import threading
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import psycopg
from anyio import to_thread

from ...domain.errors import DeclarationError
from ...projections.message import Message
from ..connection import one_line
from ..identity import new_event_id
from ..store import Store
from . import problem
from .claims import Busy, Done, Mode, RequestTakenOver, Response, Work
from .exchange import (
    KEPT_HEADERS,
    PLACE,
    ASGIApp,
    Event,
    Exchange,
    Receive,
    Scope,
    Send,
    is_kept,
)
from .keeper import Keeper
from .key import HEADER, BadKey, Identity, identity, key_of
from .problem import Problem
from .transaction import RequestTransaction

log = logging.getLogger("onefold.http")

REPLAYED = b"idempotency-replayed"
EXPIRES = b"idempotency-expires"
RETRY_AFTER = 1
"""Seconds after which a client may ask again whether its first request is done."""

PATIENCE = 5.0
"""Seconds that a request waits for one of the transactions that may be open at once."""

SERVICE = re.compile(r"[a-z][a-z0-9_-]{0,39}")
# What a server may send in other ways than as a body, past the one who holds it back.
_EXTENSIONS = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")

Principal = Callable[[Scope], "str | Awaitable[str | None] | None"]


class IdempotencyKey:
    """ASGI middleware: claims the `Idempotency-Key` of a request, and keeps what was answered.

    `store` says where, and with how many connections. A request is known by service, principal, method, path and key;
    one that comes again gets the response of the first, with `Idempotency-Replayed: true`. What is answered without
    a key, with a broken one, with that of another request or of one at work, is problem+json: 400, 400, 422, 409.

    `service` tells the applications of one database apart. `methods` are those that keys are for; `required` says
    whether there must be one, for all or by scope. `compat` takes a key without quotes too. `principal` returns who
    asks, by scope, None for nobody; left out it is the header Authorization, hashed. `claim` is how a key is claimed,
    for all or by scope: `lease` for `lease` seconds, prolonged while the handler works; or `transaction`, the one that
    `transaction(request)` gives the handler, on a connection that is held from the first to the last. `retention` is
    for how long a response is kept at least. `max_body` and `max_response` are bytes. `keep_headers` are kept besides
    `KEPT_HEADERS`.
    """

    def __init__(
        self,
        app: ASGIApp,
        store: Store,
        *,
        service: str = "http",
        methods: Iterable[str] = ("POST", "PATCH"),
        required: bool | Callable[[Scope], bool] = True,
        compat: bool = False,
        principal: Principal | None = None,
        claim: Mode | Callable[[Scope], Mode] = "lease",
        lease: float = 30.0,
        retention: timedelta = timedelta(days=1),
        max_body: int = 1 << 20,
        max_response: int = 1 << 20,
        keep_headers: Iterable[str] = (),
    ) -> None:
        if not SERVICE.fullmatch(service):
            raise DeclarationError(
                f"expected a service of lower-case letters, digits, _ and -, at most 40, found {service!r}"
            )
        if isinstance(claim, str) and claim not in ("lease", "transaction"):
            raise DeclarationError(f'expected claim="lease" or claim="transaction", found {claim!r}')
        if not (math.isfinite(lease) and lease > 0):
            raise DeclarationError(f"expected a lease of more than 0 seconds, found {lease!r}")
        if retention < timedelta(seconds=lease):
            raise DeclarationError(
                f"expected a retention that is at least as long as the lease of {lease} s, found {retention}"
            )
        if max_body < 0 or max_response < 0:
            raise DeclarationError(
                f"expected 0 bytes or more, found max_body {max_body} and max_response {max_response}"
            )
        self.app = app
        self._store = store
        self._service = service
        self._methods = frozenset(method.upper() for method in methods)
        self._required = required
        self._compat = compat
        self._principal: Principal = by_authorization if principal is None else principal
        self._claim = _by_scope(claim)
        self._lease = lease
        self._retention = retention
        self._max_body = max_body
        self._max_response = max_response
        self._kept_headers = KEPT_HEADERS.union(name.lower() for name in keep_headers)
        self._keeper = Keeper(store.url, lease)

    @functools.cached_property
    def _places(self) -> anyio.Semaphore:
        # One connection is left for what is not a handler's transaction, such as to keep a response.
        return anyio.Semaphore(max(1, self._store.pool.max_size - 1))

    @functools.cached_property
    def _entering(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(self._store.pool.max_size + 1)

    @functools.cached_property
    def _leaving(self) -> anyio.CapacityLimiter:
        # Apart from those who enter: they may wait for a connection that these give back.
        return anyio.CapacityLimiter(self._store.pool.max_size + 1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass on what is none."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] != "http" or scope["method"] not in self._methods:
            await self.app(scope, receive, send)
        else:
            found = await self._handle(scope, receive, send)
            if found is not None:
                await _answer(send, found)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched() -> Event:
            event = await receive()
            if event["type"] == "lifespan.shutdown":
                await to_thread.run_sync(self._keeper.close)
            return event

        await self.app(scope, watched, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> Problem | None:
        try:
            key = key_of(_lines(scope, b"idempotency-key"), compat=self._compat)
        except BadKey as error:
            return problem.malformed(str(error))
        if key is None and (self._required(scope) if callable(self._required) else self._required):
            return problem.missing(HEADER)
        body = await _body(scope, receive, self._max_body)
        if body is None:
            return None
        if isinstance(body, Problem):
            return body
        if key is None:
            return await self._run(Work(self._store.pool, None, self._lease), scope, send, body)
        who = self._principal(scope)
        if inspect.isawaitable(who):
            who = await who
        mode = self._claim(scope)
        asked = functools.partial(
            identity,
            self._service,
            who,
            scope["method"],
            scope["path"],
            scope.get("query_string", b""),
            key,
            b",".join(_lines(scope, b"content-type")).decode("latin-1"),
            body,
        )
        if mode == "lease":
            return await self._claimed(asked, mode, scope, send, body)
        try:
            with anyio.fail_after(PATIENCE):
                await self._places.acquire()
        except TimeoutError:
            log.warning("%s: all transactions are in use; a larger pool_size allows more", self._service)
            return problem.unavailable(RETRY_AFTER)
        try:
            return await self._claimed(asked, mode, scope, send, body)
        finally:
            self._places.release()

    async def _claimed(
        self, asked: Callable[[], Identity], mode: Mode, scope: Scope, send: Send, body: bytes
    ) -> Problem | None:
        """Claim the key and run the handler, or answer with what is kept."""
        work = Work(self._store.pool, asked, self._lease)

        def enter() -> Busy | Done | None:
            self._keeper.register(self._store.pool, self._service, self._retention)
            return work.enter(mode)

        try:
            found = await to_thread.run_sync(enter, limiter=self._entering)
        except psycopg.OperationalError as error:
            log.warning("%s: %s is not claimed: %s", self._service, _shown(scope), one_line(error))
            return problem.unavailable(RETRY_AFTER)
        except BaseException:
            await self._abandon(work, [])
            raise
        self._keeper.look()
        match found:
            case None:
                return await self._run(work, scope, send, body)
            case Busy(same):
                return problem.in_use(RETRY_AFTER) if same else problem.reused()
            case Done(response, same):
                if not same:
                    return problem.reused()
                log.info(
                    "%s: %s is answered as it was at %s", self._service, _shown(scope), response.recorded_at
                )
                await _replay(send, response, self._headers_of(response))
                return None

    async def _run(self, work: Work, scope: Scope, send: Send, body: bytes) -> Problem | None:
        """Let the application answer; what it answers is sent once it is kept."""
        opened: list[RequestTransaction] = []
        turn = threading.Lock()

        def begin() -> RequestTransaction:
            with turn:
                if not opened:
                    message = _message(work, scope, self._service)
                    opened.append(
                        RequestTransaction(work.begin(), self._store.repository, message, self._service)
                    )
                return opened[0]

        async def finish(response: Response) -> Response | None:
            kept = response._replace(
                headers=[each for each in response.headers if each[0] in self._kept_headers]
            )
            return await to_thread.run_sync(leave, kept, limiter=self._leaving)

        def leave(response: Response) -> Response | None:
            for each in opened:
                each.end()
            if exchange.forgotten or not is_kept(response.status):
                work.abandon()
                return None
            return work.finish(response)

        exchange = Exchange(body, send, finish, self._headers_of, begin, self._max_response)
        inner = {**scope, PLACE: exchange}
        if "extensions" in scope:
            extensions = scope["extensions"] or {}
            inner["extensions"] = {
                name: value for name, value in extensions.items() if name not in _EXTENSIONS
            }
        if work.token is not None and work.key is not None:
            self._keeper.add(work.token, work.key)
        try:
            await self.app(inner, exchange.receive, exchange.send)
        except BaseException as error:
            # An error that the exchange raised may come back in a group, or as the cause of another.
            if isinstance(error, Exception) and exchange.refused is not None:
                return self._refused(exchange)
            if isinstance(error, Exception) and exchange.failed is not None:
                return self._failed(exchange.failed, scope)
            raise
        finally:
            if work.token is not None:
                self._keeper.remove(work.token)
            await self._abandon(work, opened)
        if exchange.refused is not None:
            return self._refused(exchange)
        if exchange.failed is not None:
            return self._failed(exchange.failed, scope)
        return None

    async def _abandon(self, work: Work, opened: list[RequestTransaction]) -> None:
        def abandon() -> None:
            for each in opened:
                each.end()
            work.abandon()

        if not work.over:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(abandon, limiter=self._leaving)

    def _refused(self, exchange: Exchange) -> Problem:
        log.error("%s: %s", self._service, exchange.refused)
        return problem.not_replayable()

    def _failed(self, error: BaseException, scope: Scope) -> Problem:
        match error:
            case RequestTakenOver():
                log.error("%s: %s: %s", self._service, _shown(scope), error)
                return problem.in_use(RETRY_AFTER)
            case psycopg.OperationalError():
                log.error("%s: %s is not kept: %s", self._service, _shown(scope), one_line(error))
                return problem.unavailable(RETRY_AFTER)
            case _:
                raise error

    def _headers_of(self, response: Response) -> list[tuple[bytes, bytes]]:
        if response.recorded_at is None:
            return []
        return [(EXPIRES, _http_date(response.recorded_at + self._retention))]


def by_authorization(scope: Scope) -> str | None:
    """Return who asks by the header Authorization, hashed, None without one."""
    lines = _lines(scope, b"authorization")
    return hashlib.sha256(b"\x00".join(lines)).hexdigest() if lines else None


def _by_scope(claim: Mode | Callable[[Scope], Mode]) -> Callable[[Scope], Mode]:
    if claim == "lease":
        return lambda _: "lease"
    if claim == "transaction":
        return lambda _: "transaction"
    return claim


async def _body(scope: Scope, receive: Receive, limit: int) -> bytes | Problem | None:
    """Return the whole body, the problem of one that is too large, None if the client is gone."""
    for value in _lines(scope, b"content-length"):
        if value.isdigit() and int(value) > limit:
            return problem.too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        part = event.get("body", b"")
        size += len(part)
        if size > limit:
            return problem.too_large(limit)
        parts.append(part)
        if not event.get("more_body", False):
            return b"".join(parts)


async def _answer(send: Send, found: Problem) -> None:
    body = found.body
    headers = [
        (b"content-type", problem.MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in found.headers.items()),
    ]
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _replay(send: Send, response: Response, more: list[tuple[bytes, bytes]]) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    headers += [(REPLAYED, b"true"), *more]
    if response.status not in (204, 304):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def _message(work: Work, scope: Scope, service: str) -> Message:
    extensions: dict[str, Any] = {
        name: value.decode("latin-1")
        for name in ("traceparent", "tracestate")
        for value in _lines(scope, name.encode())[:1]
    }
    return Message(
        str(new_event_id() if work.key is None else work.key),
        f"/{service}",
        f"{scope['method']} {scope['path']}",
        extensions=extensions,
    )


def _lines(scope: Scope, name: bytes) -> list[bytes]:
    return [value for found, value in scope["headers"] if found.lower() == name]


def _shown(scope: Scope) -> str:
    text = f"{scope['method']} {scope['path']}"
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")[1:-1]


def _http_date(at: datetime) -> bytes:
    return format_datetime(at.astimezone(UTC), usegmt=True).encode()
