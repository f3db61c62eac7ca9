"""HTTP requests of a call, each with the call's key, through connections that a worker's calls share."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ..brokers.port import MissingExtra
from .errors import LeaseLost, SecondRequest
from .hold import Hold

try:
    import httpx
except ImportError as error:
    raise MissingExtra(
        "HTTP requests of effects need the package httpx, which is not installed; install it with: "
        "pip install 'onefold[effects]'"
    ) from error

HEADER = "Idempotency-Key"
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, 9.2.1), and so need no key."""


# As httpx draws it.
_BOUNDARY = re.compile("multipart/form-data; boundary=([0-9a-f]{32})")


class Stamp:
    """Gives the requests of one call their key.

    The same request may be made again, as in a loop of the function's own, and has the same key.
    """

    def __init__(self, effect: str, key: str, hold: Hold) -> None:
        self._effect = effect
        self._key = key
        self._hold = hold
        self._first: bytes | None = None

    def put(self, request: httpx.Request, content: bytes) -> httpx.Request:
        """Prepare a request, and return it as it is to be sent; raises `SecondRequest` and `LeaseLost`."""
        if not self._hold.lasts:
            raise LeaseLost(self._effect, self._key)
        timeout: dict[str, Any] = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {
            name: self._hold.lease if (given := timeout.get(name)) is None else min(given, self._hold.lease)
            for name in ("connect", "read", "write", "pool")
        }
        if request.method in SAFE or HEADER in request.headers:
            return request
        request, content = _settled(request, content)
        mark = hashlib.blake2b(f"{request.method} {request.url}\n".encode() + content).digest()
        if self._first is None:
            self._first = mark
        elif self._first != mark:
            raise SecondRequest(self._effect, "request that changes something")
        # A string of RFC 9651, as draft-ietf-httpapi-idempotency-key-header asks.
        request.headers[HEADER] = f'"{self._key}"'
        return request


class _Elsewhere(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Stands where a client has its connections; those of a call are with the worker."""


class Client(httpx.Client):
    """A client for one call, or one step of it: headers, cookies and other settings are its own."""

    def __init__(self, shared: httpx.Client, stamp: Stamp, timeout: float) -> None:
        super().__init__(transport=_Elsewhere(), timeout=timeout)
        self._shared = shared
        self._stamp = stamp

    def send(
        self,
        request: httpx.Request,
        *,
        stream: bool = False,
        auth: Any = httpx.USE_CLIENT_DEFAULT,
        follow_redirects: Any = httpx.USE_CLIENT_DEFAULT,
    ) -> httpx.Response:
        request = self._stamp.put(request, request.read())
        shared = self._shared
        shared.cookies = self.cookies
        shared.event_hooks = self.event_hooks
        response = shared.send(
            request,
            stream=stream,
            auth=self.auth if auth is httpx.USE_CLIENT_DEFAULT and self.auth is not None else auth,
            follow_redirects=(
                self.follow_redirects if follow_redirects is httpx.USE_CLIENT_DEFAULT else follow_redirects
            ),
        )
        self.cookies = shared.cookies
        return response


class AsyncClient(httpx.AsyncClient):
    """`Client` for a function that is `async`."""

    def __init__(self, shared: httpx.AsyncClient, stamp: Stamp, timeout: float) -> None:
        super().__init__(transport=_Elsewhere(), timeout=timeout)
        self._shared = shared
        self._stamp = stamp

    async def send(
        self,
        request: httpx.Request,
        *,
        stream: bool = False,
        auth: Any = httpx.USE_CLIENT_DEFAULT,
        follow_redirects: Any = httpx.USE_CLIENT_DEFAULT,
    ) -> httpx.Response:
        request = self._stamp.put(request, await request.aread())
        shared = self._shared
        shared.cookies = self.cookies
        shared.event_hooks = self.event_hooks
        response = await shared.send(
            request,
            stream=stream,
            auth=self.auth if auth is httpx.USE_CLIENT_DEFAULT and self.auth is not None else auth,
            follow_redirects=(
                self.follow_redirects if follow_redirects is httpx.USE_CLIENT_DEFAULT else follow_redirects
            ),
        )
        self.cookies = shared.cookies
        return response


def _settled(request: httpx.Request, content: bytes) -> tuple[httpx.Request, bytes]:
    """Return a request and its content, a form of files with a boundary that its content gives, not chance."""
    kind = request.headers.get("Content-Type", "")
    found = _BOUNDARY.fullmatch(kind)
    if found is None:
        return request, content
    drawn = found[1]
    # Nothing that is in the form can hold a digest of all of it.
    settled = hashlib.blake2b(content.replace(drawn.encode(), b""), digest_size=len(drawn) // 2).hexdigest()
    content = content.replace(drawn.encode(), settled.encode())
    headers = request.headers.copy()
    headers["Content-Type"] = kind.replace(drawn, settled)
    headers["Content-Length"] = str(len(content))
    headers.pop("Transfer-Encoding", None)
    return (
        httpx.Request(
            request.method, request.url, headers=headers, content=content, extensions=request.extensions
        ),
        content,
    )


def pool() -> httpx.Client:
    """Return a client that holds the connections of a worker's plain calls."""
    return httpx.Client()


def async_pool() -> httpx.AsyncClient:
    """Return a client that holds the connections of a worker's `async` calls."""
    return httpx.AsyncClient()
