"""What a handler asks of its request: its transaction, and that its response be not kept."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from .exchange import PLACE, Exchange, OutsideRequest
from .transaction import AsyncRequestTransaction, RequestTransaction


def transaction(request: Request) -> RequestTransaction:
    """Return the transaction of a request, for a handler that is not `async`; a dependency for FastAPI.

    It is committed together with the response, before that is sent, if its status is below 400; otherwise, and when an
    error is raised, it is rolled back. Raises `OutsideRequest` for a request that the middleware does not handle.
    """
    return _exchange(request).transaction()


async def async_transaction(request: Request) -> AsyncRequestTransaction:
    """Return the transaction of a request, for a handler that is `async`; see `transaction`."""
    return AsyncRequestTransaction(await asyncio.to_thread(_exchange(request).transaction))


def forget(request: Request) -> None:
    """Have the response sent and not kept, and what the handler did in its transaction rolled back.

    For an answer that says nothing of what the next try will find, such as that another request was faster.
    """
    _exchange(request).forgotten = True


def _exchange(request: Request) -> Exchange:
    found: Exchange | None = request.scope.get(PLACE)
    if found is None:
        raise OutsideRequest
    return found
