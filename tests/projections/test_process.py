"""Process managers: what a declaration must say, and how a method is tried out without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onefold import (
    Aggregate,
    App,
    Event,
    EventMeta,
    Message,
    ProcessManager,
    Registry,
    applies,
    process_manager,
    reacts,
    timeout,
)
from onefold.domain.errors import DeclarationError
from onefold.domain.instant import NaiveInstant
from onefold.projections.app import UnknownProcess
from onefold.projections.consumer import MessageRefused
from onefold.projections.process import process_of

registry = Registry()
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


class Door(Aggregate, category="door"):
    class Opened(Event, name="door.opened", registry=registry):
        room: str | None = None

    class Shut(Event, name="door.shut", registry=registry):
        pass


@process_manager("alarm", registry=registry)
class Alarm(ProcessManager, category="alarm"):
    class Armed(Event, name="alarm.armed", registry=registry):
        pass

    armed: bool = False

    @reacts(Door.Opened, by=lambda event: event.room)
    def opened(self, event: Door.Opened, tx: Any) -> None:
        self.emit(self.Armed())
        self.timeout("ring", after=timedelta(seconds=30))

    @reacts(Door.Shut)
    def shut(self, event: Door.Shut, tx: Any) -> None:
        self.forget("ring")

    @timeout("ring")
    def ring(self, tx: Any) -> None: ...

    @applies(Armed)
    def _armed(self, event: Armed) -> None:
        self.armed = True


def test_a_method_can_be_tried_out_without_a_database() -> None:
    alarm = Alarm.new("hall")
    alarm.now = NOW
    alarm.opened(Door.Opened(room="hall"), None)
    assert alarm.armed
    assert [type(event) for event in alarm.pending] == [Alarm.Armed]
    assert alarm.timeouts == {"ring": NOW + timedelta(seconds=30)}
    alarm.shut(Door.Shut(), None)
    assert alarm.timeouts == {"ring": None}
    alarm.timeout("ring", at=NOW)
    assert alarm.timeouts == {"ring": NOW}


def test_a_timeout_needs_a_name_that_is_declared_and_one_time() -> None:
    alarm = Alarm.new("hall")
    with pytest.raises(DeclarationError, match="without an instant that is now"):
        alarm.timeout("ring", after=timedelta(1))
    alarm.now = NOW
    for bad in ({}, {"at": NOW, "after": timedelta(1)}):
        with pytest.raises(DeclarationError, match="either at=, an instant, or after="):
            alarm.timeout("ring", **bad)
    with pytest.raises(NaiveInstant):
        alarm.timeout("ring", at=datetime(2026, 1, 1))  # noqa: DTZ001
    for call in (lambda: alarm.timeout("sing", at=NOW), lambda: alarm.forget("sing")):
        with pytest.raises(DeclarationError, match="no timeout 'sing'; declared with @timeout are: ring"):
            call()
    assert alarm.timeouts == {}


def test_an_event_leads_to_its_instance() -> None:
    process = process_of(Alarm)
    meta = EventMeta("door/front", 1)
    assert process.instance_of(Door.Opened(room="hall").bound(meta)) == "hall"
    assert process.instance_of(Door.Opened().bound(meta)) is None
    assert process.instance_of(Door.Shut().bound(meta)) == "front"
    assert process.types == {"door.opened", "door.shut"}


def test_its_consumer_takes_events_of_the_log_and_refuses_what_others_bring() -> None:
    consumer = process_of(Alarm).consumer
    assert (consumer.name, consumer.rule.ordering, consumer.ordered) == ("alarm", "unordered", True)
    with pytest.raises(MessageRefused, match="run it with `onefold process alarm`"):
        consumer.sequence_of(Message("1", "/door", "door.opened", {}))


def test_an_application_has_its_process_managers_among_its_aggregates_and_consumers() -> None:
    app = App(aggregates=[Door], processes=[Alarm])
    process = process_of(Alarm)
    assert app.processes == (process,)
    assert app.aggregates == (Door, Alarm)
    assert app.consumers == (process.consumer,)
    assert app.process("alarm") is process
    assert "processes=[alarm]" in repr(app)
    with pytest.raises(UnknownProcess, match="expected one of the process managers alarm, found 'smoke'"):
        app.process("smoke")
    with pytest.raises(DeclarationError, match="category 'alarm' stands twice"):
        App(aggregates=[Alarm], processes=[Alarm])


def test_a_class_that_is_not_declared_is_no_process_manager() -> None:
    class Silent(Alarm, category="silent"):
        pass

    with pytest.raises(DeclarationError, match="declare it with @process_manager"):
        App(processes=[Silent])


def declared(body: dict[str, Any], **options: Any) -> None:
    kind: Any = type(ProcessManager)
    made = kind("Made", (ProcessManager,), body, category=options.pop("category", "made"))
    process_manager(options.pop("name", "made"), **{"registry": registry, **options})(made)


def answering(*event_classes: Any, **options: Any) -> Any:
    return reacts(*event_classes, **options)(lambda self, event, tx: None)


async def waits(self: Any, event: Any, tx: Any) -> None: ...


class Nameless(Event):
    pass


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ({}, {}, "expected a method with @reacts"),
        ({"a": answering(Door.Shut)}, {"category": ""}, "expected a category"),
        ({"a": answering(Door.Shut)}, {"name": "Made"}, "consumer name 'Made' must be"),
        ({"a": answering(Door.Shut)}, {"begin": "middle"}, "begin must be"),
        ({"a": answering(Door.Shut), "b": answering(Door.Shut)}, {}, "a second answer to Door.Shut"),
        ({"a": answering()}, {}, "names no event class"),
        ({"a": answering(Nameless)}, {}, "expected event classes with a name"),
        ({"a": answering(Door)}, {}, "expected event classes with a name"),
        ({"a": reacts(Door.Shut)(waits)}, {}, "found an async one"),  # type: ignore[type-var]
        ({"a": answering(Door.Shut)}, {"registry": Registry()}, "is not in its registry"),
        (
            {
                "a": answering(Door.Shut),
                "b": timeout("x")(lambda self, tx: None),
                "c": timeout("x")(lambda self, tx: None),
            },
            {},
            "a second method of timeout 'x'",
        ),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(
    body: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        declared(body, **options)


def test_a_timeout_has_a_name_of_letters() -> None:
    with pytest.raises(DeclarationError, match="timeout 'Pay up' must be"):
        timeout("Pay up")
