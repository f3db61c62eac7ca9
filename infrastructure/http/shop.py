"""The API of the bundled shop: orders and accounts over HTTP, each operation safe to try again."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import psycopg
from fastapi import Depends, FastAPI, Header, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response as PlainResponse

from ...domain.account import Account
from ...domain.aggregate import Aggregate
from ...domain.errors import CommandRefused, IllegalTransition, OnefoldError, UnstorableValue
from ...domain.money import CurrencyMismatch
from ...domain.order import Order
from ..connection import one_line
from ..identity import new_event_id
from ..postgres.errors import AggregateNotFound, VersionConflict
from ..store import Store
from .exchange import PLACE
from .middleware import RETRY_AFTER, IdempotencyKey, log
from .problem import MEDIA_TYPE, Problem, sentence
from .request import forget, transaction
from .shop_models import (
    AccountView,
    Amount,
    Cancellation,
    Id,
    NewAccount,
    NewOrder,
    NewPayment,
    OrderView,
    ProblemView,
    problems,
)
from .transaction import RequestTransaction

A = TypeVar("A", bound=Aggregate)

TRIES = 30
"""Tries of a command whose aggregate others change at the same time."""

RETENTION = timedelta(days=1)
LEASE = 30.0

_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')


class PreconditionFailed(OnefoldError):
    """The aggregate has another version than the request expects."""


class Exists(OnefoldError):
    """What is to be made is there already."""


def _key(
    key: Annotated[
        str,
        Header(
            alias="Idempotency-Key",
            pattern=r'^"([ !#-\[\]-~]|\\["\\])+"$',
            description="A String of RFC 9651: text in quotes, new for each operation and the same for each try of it.",
            examples=['"8e03978e-40d5-43e8-bc93-6894a57f9324"'],
        ),
    ],
) -> None:
    """Describes the header; the middleware reads it."""


Match = Annotated[
    str | None,
    Header(alias="If-Match", description="The ETag that the aggregate must have; 412 where it has another."),
]
Tx = Annotated[RequestTransaction, Depends(transaction)]
OrderId = Annotated[Id, Path()]
AccountId = Annotated[Id, Path()]
READ = problems(404, 422, 503)
WRITE = problems(400, 404, 409, 412, 413, 422, 503)
MAKE = problems(400, 409, 413, 422, 503)


def shop_api(store: Store) -> FastAPI:
    """Return the API of the bundled shop on a store of the bundled application.

    It needs as many connections as requests are to be handled at once, and one more.
    """
    api = FastAPI(
        title="Onefold shop",
        version="1",
        description="Orders and accounts. Each POST takes an Idempotency-Key and may be sent again.",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    api.add_middleware(
        IdempotencyKey, store=store, service="shop", claim="transaction", lease=LEASE, retention=RETENTION
    )
    _answer_problems(api)
    _add_orders(api, store)
    _add_accounts(api, store)
    _describe(api)
    return api


def _add_orders(api: FastAPI, store: Store) -> None:
    @api.post("/orders", status_code=201, responses=MAKE, dependencies=[Depends(_key)])
    def place_order(body: NewOrder, tx: Tx, response: Response) -> OrderView:
        """Place an order."""
        key = body.order_id or str(new_event_id())
        _require_new(tx, Order, key)
        order = Order.place(key, body.customer_id, [item.line for item in body.items], at=_now())
        _save_new(tx, order)
        response.headers["Location"] = f"/orders/{key}"
        return _tagged(response, order, OrderView.of)

    @api.get("/orders/{order_id}", responses=READ)
    def get_order(order_id: OrderId, response: Response) -> OrderView:
        """Return an order as it is now."""
        return _tagged(response, store.get(Order, order_id), OrderView.of)

    @api.post("/orders/{order_id}/payments", status_code=201, responses=WRITE, dependencies=[Depends(_key)])
    def receive_payment(
        order_id: OrderId, body: NewPayment, tx: Tx, response: Response, if_match: Match = None
    ) -> OrderView:
        """Take note of a payment for an order."""

        def receive(order: Order) -> None:
            order.receive_payment(
                body.payment_id, body.amount.money, at=_now(), kind=body.kind, installments=body.installments
            )

        return _changed(tx, response, Order, order_id, if_match, receive, OrderView.of)

    @api.post("/orders/{order_id}/cancellation", responses=WRITE, dependencies=[Depends(_key)])
    def cancel_order(
        order_id: OrderId, body: Cancellation, tx: Tx, response: Response, if_match: Match = None
    ) -> OrderView:
        """Call an order off."""
        return _changed(
            tx,
            response,
            Order,
            order_id,
            if_match,
            lambda order: order.cancel(body.reason, at=_now()),
            OrderView.of,
        )

    def step(path: str, name: str, summary: str, command: Callable[[Order], None]) -> None:
        def take(order_id: OrderId, tx: Tx, response: Response, if_match: Match = None) -> OrderView:
            return _changed(tx, response, Order, order_id, if_match, command, OrderView.of)

        api.add_api_route(
            f"/orders/{{order_id}}/{path}",
            take,
            methods=["POST"],
            name=name,
            summary=summary,
            responses=WRITE,
            dependencies=[Depends(_key)],
        )

    step("confirmation", "confirm_order", "Accept an order.", lambda order: order.confirm(at=_now()))
    step("invoice", "invoice_order", "Write the invoice.", lambda order: order.invoice(at=_now()))
    step("shipment", "ship_order", "Hand the goods to the carrier.", lambda order: order.ship(at=_now()))
    step(
        "delivery",
        "deliver_order",
        "Hand the goods to the customer.",
        lambda order: order.deliver(at=_now()),
    )


def _add_accounts(api: FastAPI, store: Store) -> None:
    @api.post("/accounts", status_code=201, responses=MAKE, dependencies=[Depends(_key)])
    def open_account(body: NewAccount, tx: Tx, response: Response) -> AccountView:
        """Open an account."""
        key = body.account_id or str(new_event_id())
        _require_new(tx, Account, key)
        account = Account.open(key, body.currency, at=_now())
        _save_new(tx, account)
        response.headers["Location"] = f"/accounts/{key}"
        return _tagged(response, account, AccountView.of)

    @api.get("/accounts/{account_id}", responses=READ)
    def get_account(account_id: AccountId, response: Response) -> AccountView:
        """Return an account as it is now."""
        return _tagged(response, store.get(Account, account_id), AccountView.of)

    @api.post(
        "/accounts/{account_id}/deposits", status_code=201, responses=WRITE, dependencies=[Depends(_key)]
    )
    def deposit(
        account_id: AccountId, body: Amount, tx: Tx, response: Response, if_match: Match = None
    ) -> AccountView:
        """Take money in."""
        return _changed(
            tx,
            response,
            Account,
            account_id,
            if_match,
            lambda account: account.deposit(body.amount.money, at=_now()),
            AccountView.of,
        )

    @api.post(
        "/accounts/{account_id}/withdrawals", status_code=201, responses=WRITE, dependencies=[Depends(_key)]
    )
    def withdraw(
        account_id: AccountId, body: Amount, tx: Tx, response: Response, if_match: Match = None
    ) -> AccountView:
        """Pay money out."""
        return _changed(
            tx,
            response,
            Account,
            account_id,
            if_match,
            lambda account: account.withdraw(body.amount.money, at=_now()),
            AccountView.of,
        )


V = TypeVar("V")


def _changed(
    tx: RequestTransaction,
    response: Response,
    aggregate_class: type[A],
    key: str,
    if_match: str | None,
    command: Callable[[A], None],
    view: Callable[[A], V],
) -> V:
    def checked(aggregate: A) -> None:
        _require_match(aggregate, if_match)
        command(aggregate)

    return _tagged(response, tx.change(aggregate_class, key, checked, tries=TRIES), view)


def _tagged(response: Response, aggregate: A, view: Callable[[A], V]) -> V:
    response.headers["ETag"] = f'"{aggregate.version}"'
    return view(aggregate)


def _require_new(tx: RequestTransaction, aggregate_class: type[Aggregate], key: str) -> None:
    if tx.find(aggregate_class, key) is not None:
        raise Exists(
            f"expected a new {aggregate_class.category}, found {key} in place; give another id, or none"
        )


def _save_new(tx: RequestTransaction, aggregate: Aggregate) -> None:
    try:
        with tx.savepoint():
            tx.save(aggregate)
    except VersionConflict:
        _require_new(tx, type(aggregate), aggregate.key)
        raise


def _require_match(aggregate: Aggregate, if_match: str | None) -> None:
    if if_match is None or if_match.strip() == "*":
        return
    # Strong comparison: a weak tag is never the same as another.
    if f'"{aggregate.version}"' not in _TAG.findall(if_match):
        raise PreconditionFailed(
            f'expected {aggregate.id} at the version of If-Match, found "{aggregate.version}"; '
            "get it again, and decide again"
        )


def _now() -> datetime:
    return datetime.now(UTC)


def _answer_problems(api: FastAPI) -> None:
    def told(status: int, type_: str, title: str, *, keep: bool = True) -> Callable[..., PlainResponse]:
        def tell(request: Request, error: Exception) -> PlainResponse:
            if not keep and PLACE in request.scope:
                forget(request)
            headers = {"Retry-After": str(RETRY_AFTER)} if isinstance(error, VersionConflict) else {}
            detail = sentence(str(error))
            return _response(Problem(status, detail, f"/problems/{type_}", title, headers=headers))

        return tell

    def absent(_: Request, error: Exception) -> PlainResponse:
        assert isinstance(error, AggregateNotFound)
        category, _slash, key = error.stream.partition("/")
        detail = f"There is no {category} {key}. Name one that is there, or make it first."
        return _response(Problem(404, detail, "/problems/not-found", f"There is no such {category}"))

    def unavailable(request: Request, error: Exception) -> PlainResponse:
        log.error("shop: %s %s: %s", request.method, ascii(request.url.path), one_line(error))
        return _response(
            Problem(
                503,
                "The database did not answer, or gave up. Send the same request again.",
                headers={"Retry-After": str(RETRY_AFTER)},
            )
        )

    def invalid(_: Request, error: Exception) -> PlainResponse:
        assert isinstance(error, RequestValidationError)
        flaws = [{name: flaw[name] for name in ("loc", "msg", "type")} for flaw in error.errors()]
        first = flaws[0]
        where = ".".join(map(str, first["loc"]))
        detail = f"{where}: {first['msg']}. Mend the request, and send it with a key of its own."
        return _response(Problem(422, detail, "/problems/invalid", "Request is invalid", {"errors": flaws}))

    def plain(_: Request, error: Exception) -> PlainResponse:
        assert isinstance(error, HTTPException)
        return _response(Problem(error.status_code, str(error.detail), headers=dict(error.headers or {})))

    def failed(_: Request, _error: Exception) -> PlainResponse:
        return _response(Problem(500, "The server failed; its log says why. Nothing was done."))

    handlers: dict[type[Exception], Callable[..., PlainResponse]] = {
        AggregateNotFound: absent,
        Exists: told(409, "exists", "Id is taken"),
        IllegalTransition: told(409, "illegal-transition", "Not possible now"),
        CommandRefused: told(409, "refused", "A rule forbids it"),
        CurrencyMismatch: told(409, "refused", "A rule forbids it"),
        # The next try may find what this one did not.
        VersionConflict: told(409, "version-conflict", "Others were faster", keep=False),
        PreconditionFailed: told(412, "precondition-failed", "Version is another", keep=False),
        UnstorableValue: told(422, "invalid", "Request is invalid"),
        RequestValidationError: invalid,
        HTTPException: plain,
        psycopg.OperationalError: unavailable,
        Exception: failed,
    }
    for kind, handler in handlers.items():
        api.add_exception_handler(kind, handler)


def _response(found: Problem) -> PlainResponse:
    return PlainResponse(found.body, found.status, dict(found.headers), MEDIA_TYPE)


def _describe(api: FastAPI) -> None:
    """Describe problems as they are; the framework would describe its own."""

    def described() -> dict[str, Any]:
        if api.openapi_schema is None:
            found = get_openapi(
                title=api.title, version=api.version, description=api.description, routes=api.routes
            )
            schema = ProblemView.model_json_schema(ref_template="#/components/schemas/{model}")
            parts = found["components"]["schemas"]
            parts.update(schema.pop("$defs"))
            parts["ProblemView"] = schema
            for name in ("HTTPValidationError", "ValidationError"):
                parts.pop(name, None)
            api.openapi_schema = found
        return api.openapi_schema

    api.openapi = described  # type: ignore[method-assign]
