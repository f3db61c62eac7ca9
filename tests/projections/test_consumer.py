"""Consumers: what may be declared of them, and what they find in a message."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Union

import pytest
from typing_extensions import TypeAliasType

from onefold.domain.errors import DeclarationError
from onefold.domain.event import Event
from onefold.domain.lifecycle import Lifecycle, Transition
from onefold.domain.registry import Registry, registry
from onefold.projections.consumer import (
    LONGEST_SEQUENCE,
    Consumer,
    ConsumerOptions,
    MessageRefused,
    consumer,
)
from onefold.projections.fingerprint import KeyMissing, digest_of
from onefold.projections.guards import Rule
from onefold.projections.message import Message
from onefold.projections.policies import Retry
from onefold.projections.projection import Projection
from onefold.projections.retention import Retention
from onefold.projections.row import Row

if TYPE_CHECKING:
    from somewhere import Transaction  # type: ignore[import-not-found]

KEPT = Registry()


class Paid(Event, name="parcel.paid", registry=KEPT):
    amount: Decimal


class Sent(Event, name="parcel.sent", registry=KEPT):
    pass


class Nameless(Event):
    pass


class Parcel(Row, key="parcel_id"):
    parcel_id: str
    paid: Decimal = Decimal(0)


Either = Paid | Sent
Alias = TypeAliasType("Alias", Paid | Sent)
AliasInUnion = Union[TypeAliasType("Inner", Sent), Paid]  # noqa: UP007
WAY = Lifecycle(("new", "paid", "sent"), (Transition("pay", Paid, ("new",), "paid"),))


def nothing(event: Message, tx: Any) -> None:
    pass


def made(
    effect: Callable[[Any, Any], Any] | None = nothing, *, ordering: Any = "unordered", **options: Any
) -> Consumer:
    options.setdefault("registry", KEPT)
    return Consumer("parcels", ordering=ordering, effect=effect, **options)


def message(data: Any = None, **attributes: Any) -> Message:
    return Message(
        **{"id": "m-1", "source": "/shop", "type": "parcel.paid", "subject": "parcel/1"} | attributes,
        data=data,
    )


# Declarations


def test_the_decorator_makes_a_consumer_that_can_still_be_called() -> None:
    seen: list[Any] = []

    @consumer("payments", ordering="delta", version="sequence", key="data.payment_id", registry=KEPT)
    def payments(event: Paid, tx: Any) -> str:
        seen.append((event, tx))
        return "done"

    event = Paid(amount=Decimal(1))
    assert payments(event, "tx") == "done"
    assert seen == [(event, "tx")]
    assert isinstance(payments, Consumer)
    assert repr(payments) == "Consumer('payments', ordering='delta')"
    assert payments.name == "payments"
    assert payments.rule == Rule("delta", "park")
    assert not payments.is_async


def test_what_is_not_declared_has_these_values() -> None:
    found = made()
    assert found.rule == Rule("unordered", "park")
    assert found.lifecycle is None
    assert found.ledger == "any"
    assert found.retention == Retention()
    assert found.retry == Retry()
    assert (found.gap_report, found.gap_deadline) == (60.0, 86_400.0)
    assert found.unknown == "reject"
    assert found.age == "time"
    assert Consumer("parcels", ordering="unordered", effect=nothing).registry is registry


def test_what_is_declared_is_kept() -> None:
    found = made(
        ordering="snapshot",
        version="sequence",
        on_gap="reject",
        ledger="time",
        retention=Retention(ledger=3600),
        retry=Retry(attempts=2),
        gap_report=1,
        gap_deadline=2,
        unknown="pass",
        age="published",
    )
    assert found.rule == Rule("snapshot", "reject")
    assert found.ledger == "time"
    assert found.retention == Retention(ledger=3600)
    assert found.retry == Retry(attempts=2)
    assert (found.gap_report, found.gap_deadline, found.unknown, found.age) == (1, 2, "pass", "published")
    assert found.registry is KEPT


def test_a_delta_consumer_without_a_version_refuses_to_start() -> None:
    """C23."""
    with pytest.raises(
        DeclarationError,
        match=r"^consumer parcels: a delta consumer needs version=, or a late message could not be told from an early "
        r'one; name where it stands \(such as version="sequence"\), or declare ordering="unordered"',
    ):
        made(ordering="delta")


def test_a_snapshot_consumer_without_a_version_refuses_to_start() -> None:
    """C26."""
    with pytest.raises(DeclarationError, match=r"^consumer parcels: a snapshot consumer needs version="):
        made(ordering="snapshot")


parcels = Projection("parcels", Parcel, registry=KEPT)


@parcels.on(Paid)
def _paid(row: Parcel | None, event: Paid) -> Parcel:
    return Parcel(parcel_id=event.meta.key, paid=event.amount)


keyed = Projection("keyed", Parcel, key=lambda event: "a", registry=KEPT)
keyed.on(Paid)(lambda row, event: row)
V: ConsumerOptions = {"version": "sequence"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ordering": "sometimes"}, r'ordering must be "delta" .*, "snapshot" .* or "unordered" .*, found'),
        ({"begins": "now"}, "begins must be \"first\" or \"first-seen\", found 'now'"),
        ({"begins": "first-seen", "ordering": "snapshot"}, "begins= has a meaning for delta messages only"),
        ({"on_gap": "skip"}, "on_gap must be \"park\" or \"reject\", found 'skip'"),
        ({"ledger": "some"}, "ledger must be \"any\" or \"time\", found 'some'"),
        ({"unknown": "drop"}, "unknown must be \"reject\" or \"pass\", found 'drop'"),
        ({"age": "old"}, "age must be \"time\", \"published\" or \"received\", found 'old'"),
        ({"version": "sequence"}, 'version= has no meaning with ordering="unordered"'),
        ({"lifecycle": WAY}, "a lifecycle guards event classes; annotate the function with them"),
        ({"gap_report": 0}, "gap_report must be more than 0 seconds, found 0"),
        ({"gap_report": -1.5}, "gap_report must be more than 0 seconds, found -1.5"),
        ({"gap_deadline": 0}, "gap_deadline must be more than 0 seconds, found 0"),
        ({"effect": None}, "expected either a function or fold=, a projection"),
        ({"fold": parcels, "ordering": "delta", **V}, "expected either a function or fold=, a projection"),
        (
            {"effect": None, "fold": parcels},
            "a fold needs an order; declare it with ordering= and version=",
        ),
        (
            {"effect": None, "fold": keyed, "ordering": "delta", **V},
            r"expected a projection keyed by the sequence, found Projection\('keyed'\) with a key of its own",
        ),
        (
            {"effect": None, "fold": parcels, "events": [Sent], "ordering": "delta", **V},
            r"expected Projection\('parcels'\) to have a fold of each event class, found 1",
        ),
        (
            {"effect": None, "fold": Projection("empty", Parcel), "ordering": "delta", **V},
            r"expected Projection\('empty'\) to have a fold of each event class, found 0",
        ),
        ({"events": []}, "expected at least one event class in events="),
        ({"events": [Paid, "Sent"]}, "expected the first parameter .* or events= to name such classes, found 'Sent'"),
        ({"events": [Event]}, "expected .* an event class that has a name, .* found <class .*Event'>"),
        ({"events": [Paid], "registry": Registry()}, "'parcel.paid' is not in the registry of the consumer; give it"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=f"^consumer parcels: {says}"):
        made(**options)


@pytest.mark.parametrize("name", ["", "Parcels", "1st", "with space", "a" * 42, "a-b", "a\n"])
def test_a_name_that_no_table_could_keep_is_refused(name: str) -> None:
    with pytest.raises(
        DeclarationError,
        match=r"^consumer name .* must be lower-case letters, digits and underscores, at most 41$",
    ):
        Consumer(name, ordering="unordered", effect=nothing)


def test_a_name_may_have_41_letters() -> None:
    assert Consumer("a" * 41, ordering="unordered", effect=nothing).name == "a" * 41


# What the function takes


def plain_text(event: "Paid", tx: Transaction) -> None: ...  # noqa: UP037
def union(event: Paid | Sent, tx: Transaction) -> None: ...
def old_union(event: Union[Paid, "Sent"], tx: Transaction) -> None: ...  # noqa: UP007, UP037
def named_union(event: Either, tx: Transaction) -> None: ...
def alias(event: Alias, tx: Transaction) -> None: ...
def alias_in_union(event: AliasInUnion, tx: Transaction) -> None: ...  # type: ignore[valid-type]
def dotted(event: SPACE.Paid, tx: Transaction) -> None: ...  # type: ignore[name-defined]
def with_default(event: Sent, tx: Transaction, times: int = 1) -> None: ...
def any_number(event: Sent, *rest: Any) -> None: ...


SPACE = SimpleNamespace(Paid=Paid)


@pytest.mark.parametrize(
    ("effect", "takes"),
    [
        (plain_text, {Paid}),
        (union, {Paid, Sent}),
        (old_union, {Paid, Sent}),
        (named_union, {Paid, Sent}),
        (alias, {Paid, Sent}),
        (alias_in_union, {Paid, Sent}),
        (dotted, {Paid}),
        (with_default, {Sent}),
        (any_number, {Sent}),
    ],
)
def test_the_annotation_of_the_first_parameter_names_the_event_classes(
    effect: Callable[[Any, Any], Any], takes: set[type[Event]]
) -> None:
    """The second may name what is not there at run time."""
    found = made(effect)
    assert set(found.takes) == takes
    assert found.model is None


def test_annotations_that_are_no_text_do_as_well() -> None:
    def effect(event: Any, tx: Any) -> None: ...

    for annotation, takes in (
        (Paid, (Paid,)),
        (Paid | Sent, (Paid, Sent)),
        (Union["Sent", Paid], (Sent, Paid)),
    ):
        effect.__annotations__["event"] = annotation
        assert made(effect).takes == takes


def whole(event: Message, tx: Any) -> None: ...
def anything(event: Any, tx: Any) -> None: ...
def bare(event, tx): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize("effect", [whole, anything, bare, lambda event, tx: None, lambda *both: None])
def test_a_function_of_a_message_or_of_anything_takes_the_message_itself(
    effect: Callable[[Any, Any], Any],
) -> None:
    found = made(effect)
    assert found.takes == ()
    assert found.model is Message
    assert found.event_class_of(message()) is None


def test_a_class_of_the_surrounding_function_is_seen_if_the_function_uses_it() -> None:
    class Local(Event, name="parcel.local", registry=KEPT):
        pass

    def effect(event: Local, tx: Any) -> bool:
        return isinstance(event, Local)

    assert made(effect).takes == (Local,)


def test_a_class_that_only_the_annotation_names_is_asked_for() -> None:
    class Hidden(Event, name="parcel.hidden", registry=KEPT):
        pass

    def effect(event: Hidden, tx: Any) -> None: ...

    with pytest.raises(
        DeclarationError,
        match=r"^consumer parcels: the annotation 'Hidden' cannot be read \(name 'Hidden' is not defined\); "
        "name the event classes with events=$",
    ):
        made(effect)
    assert made(effect, events=[Hidden]).takes == (Hidden,)


def test_a_function_may_use_names_that_are_not_assigned_yet() -> None:
    """Such as its own, which is the consumer's."""

    def effect(event: Paid, tx: Any) -> Any:
        return effect, later

    found = made(effect)
    later = 1
    assert found.takes == (Paid,)
    assert found(None, None) == (effect, later)


def test_a_text_that_is_no_annotation_is_named() -> None:
    def effect(event: Any, tx: Any) -> None: ...

    effect.__annotations__["event"] = "Paid |"
    with pytest.raises(DeclarationError, match=r"the annotation 'Paid \|' cannot be read .*events="):
        made(effect)


class Methods:
    def method(self, event: Paid, tx: Any) -> str:
        return "method"

    @staticmethod
    def static(event: Paid, tx: Any) -> str:
        return "static"

    @classmethod
    def of_class(cls, event: Paid, tx: Any) -> str:
        return "class"

    def __call__(self, event: Paid, tx: Any) -> str:
        return "call"


class Awaited:
    async def __call__(self, event: Paid, tx: Any) -> str:
        return "awaited"


def with_more(more: str, event: Paid, tx: Any) -> str:
    return more


@functools.wraps(plain_text)
def wrapped(*both: Any) -> str:
    return "wrapped"


@pytest.mark.parametrize(
    ("effect", "result"),
    [
        (Methods().method, "method"),
        (Methods.static, "static"),
        (Methods.of_class, "class"),
        (Methods(), "call"),
        (functools.partial(with_more, "partial"), "partial"),
        (functools.partial(Methods().method), "method"),
        (wrapped, "wrapped"),
    ],
)
def test_whatever_can_be_called_with_two_arguments_may_be_a_consumer(effect: Any, result: str) -> None:
    found = made(effect)
    assert found.takes == (Paid,)
    assert found(Paid(amount=Decimal(1)), None) == result
    assert not found.is_async


async def awaited(event: Paid, tx: Any) -> str:
    return "awaited"


@pytest.mark.parametrize("effect", [awaited, functools.partial(awaited), Awaited()])
def test_an_async_function_is_told_apart(effect: Any) -> None:
    found = made(effect)
    assert found.is_async
    assert found.takes == (Paid,)

    async def call() -> Any:
        return await found(None, None)

    assert asyncio.run(call()) == "awaited"


def one(event: Paid) -> None: ...
def three(event: Paid, tx: Any, more: Any) -> None: ...
def by_name(event: Paid, *, tx: Any) -> None: ...


@pytest.mark.parametrize("effect", [one, three, by_name, 5, "payments"])
@pytest.mark.parametrize("events", [None, [Paid]])
def test_what_cannot_be_called_with_event_and_transaction_is_refused(effect: Any, events: Any) -> None:
    options = {} if events is None else {"events": events}
    with pytest.raises(
        DeclarationError, match=r"^consumer parcels: expected a function of \(event, tx\), found "
    ):
        made(effect, **options)


def of_number(event: int, tx: Any) -> None: ...
def of_optional(event: Paid | None, tx: Any) -> None: ...
def of_both(event: Paid | Message, tx: Any) -> None: ...
def of_event(event: Event, tx: Any) -> None: ...
def of_nameless(event: Nameless, tx: Any) -> None: ...
def of_list(event: list[Paid], tx: Any) -> None: ...


@pytest.mark.parametrize("effect", [of_number, of_optional, of_both, of_event, of_nameless, of_list])
def test_an_annotation_that_is_no_event_class_with_a_name_is_refused(effect: Any) -> None:
    with pytest.raises(
        DeclarationError,
        match=r"^consumer parcels: expected the first parameter to be annotated with an event class that has a name, "
        r"a union of such classes, or Message, or events= to name such classes, found ",
    ):
        made(effect)


def test_events_that_are_named_go_before_the_annotation() -> None:
    assert made(whole, events=[Paid, Sent]).takes == (Paid, Sent)
    assert made(union, events=iter([Sent])).takes == (Sent,)


def test_the_type_of_a_message_leads_to_the_event_class_also_by_an_old_name() -> None:
    kept = Registry()

    class Renamed(Event, name="parcel.renamed", version=2, registry=kept):
        pass

    kept.upcast("parcel.called", 1, to="parcel.renamed", to_version=2)(lambda data: data)
    found = made(lambda event, tx: None, events=[Renamed], registry=kept)
    assert found.event_class_of(message(type="parcel.renamed")) is Renamed
    assert found.event_class_of(message(type="parcel.called")) is Renamed
    assert found.event_class_of(message(type="parcel.paid")) is None


def test_a_fold_takes_the_events_of_its_projection_and_cannot_be_called() -> None:
    found = made(None, fold=parcels, ordering="delta", version="sequence")
    assert found.takes == (Paid,)
    assert found.model is None
    assert found.fold is parcels
    assert found.effect is None
    assert not found.is_async
    with pytest.raises(
        DeclarationError, match=r"^consumer parcels folds into a projection and cannot be called$"
    ):
        found(None, None)
    assert made(None, fold=parcels, ordering="delta", version="sequence", events=[Paid]).takes == (Paid,)


# Where things stand in a message


@pytest.mark.parametrize(
    "path",
    ["", "Data.id", "data.", ".data", "data..id", "data", "a b", "subject.id", "a.id", "data.id\n", 7, b"id"],
)
@pytest.mark.parametrize("option", ["key", "sequence", "version"])
def test_a_path_that_leads_nowhere_is_refused(option: str, path: Any) -> None:
    ordering = "delta"
    options = {"version": "sequence"} | {option: path}
    says = f"{option} must be a function of the message, or a path|{option} looks into data only"
    with pytest.raises(DeclarationError, match=f"^consumer parcels: ({says})"):
        made(ordering=ordering, **options)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("id", "m-1"),
        ("source", "/shop"),
        ("type", "parcel.paid"),
        ("subject", "parcel/1"),
        ("datacontenttype", None),
        ("orderid", "o-1"),
        ("absent", None),
        ("data.payment_id", "p-1"),
        ("data.absent", None),
        ("data.deep.er.id", 7),
        ("data.deep.absent.id", None),
        ("data.payment_id.more", None),
        ("data.list.0", None),
        ("data.Größe", "XL"),
        (lambda message: message.data["deep"]["er"]["id"] + 1, 8),
    ],
)
def test_a_path_leads_to_an_attribute_an_extension_or_a_field_of_the_data(path: Any, found: Any) -> None:
    data = {"payment_id": "p-1", "deep": {"er": {"id": 7}}, "list": [1], "Größe": "XL"}
    assert made(key=path).key_of(message(data, extensions={"orderid": "o-1"})) == found


@pytest.mark.parametrize("data", [None, b"bytes", [1], "text", 5])
@pytest.mark.parametrize("path", ["data.id", "data.deep.id"])
def test_data_that_is_no_object_has_no_fields(path: str, data: Any) -> None:
    assert made(key=path).key_of(message(data)) is None


def test_the_key_is_the_extension_for_it_or_else_source_and_id() -> None:
    """C08: the business key goes before the envelope's."""
    found = made()
    assert found.key_of(message(extensions={"idempotencykey": "payment-1"})) == "payment-1"
    assert found.key_of(message()) == ("/shop", "m-1")
    assert digest_of(found.key_of(message())) != digest_of(found.key_of(message(source="/other")))


def test_an_empty_key_is_not_replaced_by_another() -> None:
    """C07: no key is invented."""
    found = made().key_of(message(extensions={"idempotencykey": ""}))
    with pytest.raises(KeyMissing):
        digest_of(found)


def test_a_declared_key_that_a_message_lacks_is_not_replaced_by_its_id() -> None:
    with pytest.raises(KeyMissing):
        digest_of(made(key="data.payment_id").key_of(message({"payment": 1})))


@pytest.mark.parametrize(
    ("options", "sequence"),
    [
        ({}, None),
        ({"sequence": "data.n"}, "7"),
        ({"sequence": "subject"}, "parcel/1"),
        ({"ordering": "delta", "version": "sequence"}, "parcel/1"),
        ({"ordering": "snapshot", "version": "sequence"}, "parcel/1"),
        ({"ordering": "delta", "version": "sequence", "sequence": "data.n"}, "7"),
        ({"lifecycle": WAY, "events": [Paid]}, "parcel/1"),
    ],
)
def test_the_order_is_of_the_subject_unless_another_or_none_is_declared(
    options: dict[str, Any], sequence: str | None
) -> None:
    found = made(**options)
    assert found.sequence_of(message({"n": 7})) == sequence
    assert found.ordered is (sequence is not None)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, r"expected a sequence \(text\), found None"),
        ("", r"expected a sequence \(text\), found ''"),
        (True, r"expected a sequence \(text\), found True"),
        (Decimal("1.5"), r"expected a sequence \(text\), found Decimal\('1.5'\)"),
        ({"secret": "x" * 200}, r"expected a sequence \(text\), found {'secret': 'x{65}\.\.\.$"),
        ("a\x00b", r"the sequence 'a\\x00b' contains a NUL character"),
        ("a\ud800", r"the sequence 'a\\ud800' contains a lone surrogate"),
        ("x" * (LONGEST_SEQUENCE + 1), r"expected a sequence of at most 1000 bytes, found 'x{76}\.\.\.$"),
        ("é" * 501, "expected a sequence of at most 1000 bytes, found 'é"),
    ],
)
def test_a_sequence_that_is_no_short_text_is_refused(value: Any, says: str) -> None:
    with pytest.raises(MessageRefused, match=f"^{says}"):
        made(sequence="data.of").sequence_of(message({"of": value}))


@pytest.mark.parametrize("value", ["x" * LONGEST_SEQUENCE, "é" * 500])
def test_a_sequence_may_have_1000_bytes(value: str) -> None:
    assert made(sequence="data.of").sequence_of(message({"of": value})) == value


@pytest.mark.parametrize(
    ("value", "version"), [(1, 1), ("1", 1), ("007", 7), (2**63 - 1, 2**63 - 1), (str(2**63 - 1), 2**63 - 1)]
)
def test_a_version_is_a_whole_number_from_1_also_as_text(value: Any, version: int) -> None:
    found = made(ordering="delta", version="sequence")
    assert found.version_of(message(extensions={"sequence": value})) == version


INSTANT = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        None, 0, -1, "0", "-1", "+1", " 1", "1.0", "", "one", "٣", "²", True, 1.0, Decimal(1), 2**63, str(2**63),
        "1" * 20, "1" * 5_000, INSTANT, {"n": 1},
    ],
)  # fmt: skip
def test_what_is_no_whole_number_from_1_is_refused_as_a_version(value: Any) -> None:
    """C23: no version is invented."""
    found = made(ordering="delta", version="sequence")
    with pytest.raises(
        MessageRefused, match=r"^expected a version \(a whole number from 1\), found "
    ) as caught:
        found.version_of(message(extensions={"sequence": value}))
    assert len(str(caught.value)) < 150


def test_a_consumer_without_order_finds_no_version() -> None:
    assert made().version_of(message(extensions={"sequence": 3})) is None


def test_the_version_of_a_snapshot_may_be_an_instant() -> None:
    found = made(ordering="snapshot", version="time")
    first, second = (
        found.version_of(message(time=at)) for at in (INSTANT, INSTANT + timedelta(microseconds=1))
    )
    assert first is not None
    assert second == first + 1
    elsewhere = INSTANT.astimezone(timezone(timedelta(hours=5)))
    assert found.version_of(message(time=elsewhere)) == first


@pytest.mark.parametrize(
    "value",
    [None, datetime(2024, 5, 1), datetime(1999, 12, 31, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC)],  # noqa: DTZ001
)
def test_an_instant_that_cannot_be_a_version_is_refused(value: Any) -> None:
    found = made(ordering="snapshot", version="time")
    with pytest.raises(
        MessageRefused,
        match=r"^expected a version \(a whole number from 1, or an instant after 2000 with its zone\), found (None|da)",
    ):
        found.version_of(message(time=value))
