"""HTTP: requests that may come again are done once (extra `http`)."""

from ..brokers.port import MissingExtra

try:
    from .claims import HandlerBrokeTransaction, RequestTakenOver
    from .exchange import KEPT_HEADERS, NotReplayable, OutsideRequest
    from .middleware import IdempotencyKey, by_authorization
    from .problem import Problem
    from .request import async_transaction, forget, transaction
    from .transaction import AsyncRequestTransaction, RequestTransaction
except ModuleNotFoundError as error:
    if error.name not in ("anyio", "http_sf", "starlette"):
        raise
    raise MissingExtra(
        f"the HTTP middleware needs the package {error.name}, which is not installed; install it with: "
        "pip install 'onefold[http]'"
    ) from error

__all__ = [
    "KEPT_HEADERS",
    "AsyncRequestTransaction",
    "HandlerBrokeTransaction",
    "IdempotencyKey",
    "NotReplayable",
    "OutsideRequest",
    "Problem",
    "RequestTakenOver",
    "RequestTransaction",
    "async_transaction",
    "by_authorization",
    "forget",
    "transaction",
]
