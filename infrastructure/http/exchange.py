"""Exchanges: one request, whose response is held back until it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ...domain.errors import OnefoldError
from .claims import Response
from .transaction import RequestTransaction

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

PLACE = "onefold.http"
"""Where the exchange of a request is in its scope."""

KEPT_HEADERS = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-location",
        "content-type",
        "deprecation",
        "etag",
        "expires",
        "last-modified",
        "link",
        "location",
        "preference-applied",
        "retry-after",
        "sunset",
        "vary",
    }
)
"""Headers that are kept with a response. Others are of one connection, one moment or one visitor."""

FORGOTTEN = frozenset({401, 403, 408, 429})
"""Statuses below 500 that are not kept: the same request may fare better later."""


class NotReplayable(OnefoldError):
    """A response cannot be kept for its repetition: it has no end, or is too large."""


class OutsideRequest(OnefoldError):
    """What belongs to a request with an idempotency key was asked of one without."""

    def __init__(self) -> None:
        super().__init__(
            "expected a request that the IdempotencyKey middleware handles, found another; add the middleware to the "
            "application, with the method of this request among its methods"
        )


Finish = Callable[[Response], Awaitable[Response | None]]
"""Keeps a response and returns it as kept, None where none is to be; raises where that failed."""


class Exchange:
    """What an application sees of one request, and what is held back of its response."""

    def __init__(
        self,
        body: bytes,
        send: Send,
        finish: Finish,
        headers_of: Callable[[Response], list[tuple[bytes, bytes]]],
        transaction: Callable[[], RequestTransaction],
        limit: int,
    ) -> None:
        self._body: bytes | None = body
        self._send = send
        self._finish = finish
        self._headers_of = headers_of
        self._transaction = transaction
        self._limit = limit
        self._start: Event | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._answered = asyncio.Event()
        self.refused: NotReplayable | None = None
        self.failed: BaseException | None = None
        self.complete = False
        self.forgotten = False

    def transaction(self) -> RequestTransaction:
        """Return the transaction of the request, begun now if it was not."""
        return self._transaction()

    async def receive(self) -> Event:
        """Give the application the body at once, and no disconnection before it has answered.

        The response is kept also for a client that is gone: it will ask again.
        """
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._answered.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        """Take the next part of the response; after the last one all of it is kept, and then sent."""
        if self.complete:
            return
        if self.refused is not None:
            raise self.refused
        if event["type"] == "http.response.start":
            self._start = event
            self._require_end(event)
        elif event["type"] == "http.response.body":
            part = bytes(event.get("body", b""))
            self._size += len(part)
            if self._size > self._limit:
                self._refuse(f"one of more than {self._limit} bytes")
            self._parts.append(part)
            if not event.get("more_body", False):
                await self._complete()

    async def _complete(self) -> None:
        assert self._start is not None
        headers = [(name.decode("latin-1").lower(), value) for name, value in self._start.get("headers", ())]
        body = b"".join(self._parts)
        status: int = self._start["status"]
        response = Response(status, [(name, value.decode("latin-1")) for name, value in headers], body)
        self.complete = True
        try:
            kept = await self._finish(response)
        except BaseException as error:
            self.failed = error
            self._answered.set()
            raise
        more = [] if kept is None else self._headers_of(kept)
        if (
            status >= 200
            and status not in (204, 304)
            and all(name != "content-length" for name, _ in headers)
        ):
            more.append((b"content-length", str(len(body)).encode()))
        start = {**self._start, "headers": [*self._start.get("headers", ()), *more]}
        start.pop("trailers", None)
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._answered.set()

    def _require_end(self, event: Event) -> None:
        for name, value in event.get("headers", ()):
            name, text = name.lower(), value.decode("latin-1").strip().lower()
            if name == b"content-type" and text.startswith("text/event-stream"):
                self._refuse("a stream of events, which has no end")
            if name == b"content-length" and text.isdigit() and int(text) > self._limit:
                self._refuse(f"one of {text} bytes")

    def _refuse(self, found: str) -> None:
        self.refused = NotReplayable(
            f"expected a response of at most {self._limit} bytes with an end, to keep it for its repetition, found "
            f"{found}; answer with a link to what is large or a stream, give the middleware another max_response, or "
            "exempt the path from it"
        )
        raise self.refused


def is_kept(status: int) -> bool:
    """Tell whether a response with this status is kept for the repetition of its request."""
    return status < 500 and status not in FORGOTTEN
