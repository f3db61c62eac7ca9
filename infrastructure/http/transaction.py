"""The transaction that the handler of a request works in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg

from ...domain.aggregate import Aggregate
from ...projections.message import Message
from ..backoff import Backoff
from ..consuming.transaction import AsyncTransaction, Repositories, Transaction
from ..postgres.errors import VersionConflict
from ..tracing import trace_of

A = TypeVar("A", bound=Aggregate)


class RequestTransaction(Transaction):
    """The open transaction of a request: what is done in it is committed with the response, or not at all.

    `message` stands for the request: its `id` is that of the claim, its `type` method and path. The transaction is
    committed before the first byte of a response below 400 is sent, and rolled back for any other.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], repositories: Repositories, request: Message, service: str
    ) -> None:
        super().__init__(connection, repositories, request, service)

    def change(
        self,
        aggregate_class: type[A],
        key: str,
        command: Callable[[A], object],
        *,
        metadata: Mapping[str, Any] | None = None,
        tries: int = 10,
    ) -> A:
        """Load the aggregate, call `command` with it, and save what it decided; return the aggregate.

        When its stream moved on in between, the newer state is loaded and `command` called again, `tries` times in
        all; then `VersionConflict` is raised. `command` must do nothing that may not be done twice.
        """
        if tries < 1:
            raise ValueError(f"tries must be 1 or more, found {tries}")
        backoff = Backoff(0.002, 0.2)
        for attempt in range(1, tries + 1):
            aggregate = self.get(aggregate_class, key)
            command(aggregate)
            try:
                with self.savepoint():
                    self.save(aggregate, metadata=metadata)
            except VersionConflict:
                if attempt == tries:
                    raise
                time.sleep(backoff.next())
            else:
                return aggregate
        raise AssertionError("unreachable")

    def _causes(self) -> dict[str, Any]:
        return {"causation": self.message.id, "service": self._consumer, **trace_of(self.message)}


class AsyncRequestTransaction(AsyncTransaction):
    """`RequestTransaction` for a handler that is `async`: the same methods, to be awaited."""

    def __init__(self, transaction: RequestTransaction) -> None:
        super().__init__(transaction)
        self._request = transaction

    async def change(
        self,
        aggregate_class: type[A],
        key: str,
        command: Callable[[A], object],
        *,
        metadata: Mapping[str, Any] | None = None,
        tries: int = 10,
    ) -> A:
        """Load the aggregate, call `command`, which is no coroutine, with it, and save; see the sync method."""
        return await asyncio.to_thread(
            self._request.change, aggregate_class, key, command, metadata=metadata, tries=tries
        )
