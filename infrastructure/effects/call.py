"""The call: what an effect's function works with, and by which everything that it sends has the same key every time."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict, Unpack
from uuid import UUID

from ...projections.effect import step_of
from . import file, mail
from .errors import LeaseLost, SecondRequest
from .hold import Hold

if TYPE_CHECKING:
    import httpx

    from .http import Stamp


class MailOptions(TypedDict, total=False):
    """What can be said of a mail beside to whom it goes, its subject and its text.

    `html` is a second form of the text. `sender` is the one of ONEFOLD_SMTP_URL when left out. `cc` and `bcc` are one
    address or several.
    """

    html: str
    sender: str
    cc: str | Sequence[str]
    bcc: str | Sequence[str]
    reply_to: str


class Clients:
    """The HTTP connections of one worker, opened when a call first needs them."""

    def __init__(self) -> None:
        self._plain: httpx.Client | None = None
        self._async: httpx.AsyncClient | None = None

    def plain(self, stamp: Stamp, timeout: float) -> httpx.Client:
        """Return a client for one call of a plain function."""
        from . import http

        if self._plain is None:
            self._plain = http.pool()
        return http.Client(self._plain, stamp, timeout)

    def asynchronous(self, stamp: Stamp, timeout: float) -> httpx.AsyncClient:
        """Return a client for one call of an `async` function."""
        from . import http

        if self._async is None:
            self._async = http.async_pool()
        return http.AsyncClient(self._async, stamp, timeout)

    def close(self) -> None:
        """Close the connections of plain functions."""
        if self._plain is not None:
            self._plain.close()

    async def aclose(self) -> None:
        """Close the connections of `async` functions, in the loop that opened them."""
        if self._async is not None:
            await self._async.aclose()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands: its effect, the number of the try from 1, when what it tells of happened, and its lease."""

    effect: str
    attempt: int
    at: datetime
    hold: Hold
    clients: Clients


class _Calling:
    def __init__(self, place: Place, key: UUID) -> None:
        self._place = place
        self._key = key
        self._steps: dict[str, Self] = {}
        self._mail: bytes | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.effect!r}, {self.key!r}, attempt {self.attempt})"

    @property
    def key(self) -> str:
        """The key of the call, a UUID: the same with every try, whichever process makes it."""
        return str(self._key)

    @property
    def effect(self) -> str:
        """The name of the effect."""
        return self._place.effect

    @property
    def attempt(self) -> int:
        """The number of this try, from 1."""
        return self._place.attempt

    @property
    def at(self) -> datetime:
        """When the event happened, or when the call was asked for: the same with every try."""
        return self._place.at

    def step(self, name: str) -> Self:
        """Return the same call with a key of its own, for a second request or mail; the name makes it stable."""
        found = self._steps.get(name)
        if found is None:
            found = self._steps[name] = type(self)(self._place, step_of(self._key, name))
        return found

    def _stamp(self) -> Stamp:
        from .http import Stamp

        return Stamp(self.effect, self.key, self._place.hold)

    def _require_lease(self) -> None:
        if not self._place.hold.lasts:
            raise LeaseLost(self.effect, self.key)

    def _send(self, message: EmailMessage) -> str:
        self._require_lease()
        server = mail.Server.from_env()
        identity = mail.settle(message, self.key, self.at, server.sender)
        mark = hashlib.blake2b(message.as_bytes()).digest()
        if self._mail is None:
            self._mail = mark
        elif self._mail != mark:
            raise SecondRequest(self.effect, "mail")
        server.send(message, self._place.hold.lease)
        return identity

    def _compose(
        self, to: str | Sequence[str], subject: str, text: str, options: MailOptions
    ) -> EmailMessage:
        return mail.compose(to=to, subject=subject, text=text, **options)

    def _write(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        self._require_lease()
        file.write(Path(path), data.encode() if isinstance(data, str) else data, self.key)


class Call(_Calling):
    """One call of an effect, in the hands of its function."""

    @cached_property
    def http(self) -> httpx.Client:
        """A client of httpx that sends the key with the request that changes something.

        The header is `Idempotency-Key: "<key>"`; requests of safe methods go without it. Time-outs are at most the
        lease. A second such request raises `SecondRequest`: give it a `step`.
        Raises `MissingExtra` without the extra `effects`.
        """
        return self._place.clients.plain(self._stamp(), self._place.hold.lease)

    def mail(
        self, *, to: str | Sequence[str], subject: str, text: str, **options: Unpack[MailOptions]
    ) -> str:
        """Send a mail through the server of ONEFOLD_SMTP_URL, and return its Message-ID.

        Message-ID and Date are the same with every try. Raises `MailRefused` for what the server refuses for good.
        """
        return self._send(self._compose(to, subject, text, options))

    def send(self, message: EmailMessage) -> str:
        """Send a message that is made already; it gets the sender, Message-ID and Date that it lacks."""
        return self._send(message)

    def write(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        """Put a whole file at `path`, in place of one that is there; text is written as UTF-8."""
        self._write(path, data)


class AsyncCall(_Calling):
    """`Call` for a function that is `async`: the same, to be awaited."""

    @cached_property
    def http(self) -> httpx.AsyncClient:
        """An asynchronous client of httpx; see `Call.http`."""
        return self._place.clients.asynchronous(self._stamp(), self._place.hold.lease)

    async def mail(
        self, *, to: str | Sequence[str], subject: str, text: str, **options: Unpack[MailOptions]
    ) -> str:
        """Send a mail; see `Call.mail`."""
        return await asyncio.to_thread(self._send, self._compose(to, subject, text, options))

    async def send(self, message: EmailMessage) -> str:
        """Send a message that is made already; see `Call.send`."""
        return await asyncio.to_thread(self._send, message)

    async def write(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        """Put a whole file at `path`; see `Call.write`."""
        await asyncio.to_thread(self._write, path, data)
