"""Effects: what a declaration says, and what is to be done about a task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from onefold import Again, Done, Effect, Event, EventMeta, Registry, Rejected, Retry, effect
from onefold.domain.errors import DeclarationError
from onefold.projections.app import App, UnknownEffect
from onefold.projections.effect import (
    Dead,
    EffectKeyError,
    Reconcile,
    Run,
    Wait,
    after,
    before,
    call_of,
    cause_of,
    reconciled,
    step_of,
)

known = Registry()


class Sent(Event, name="letter.sent", registry=known):
    to: str


class Read(Event, name="letter.read", registry=known): ...


class Letter(BaseModel):
    to: str


def nothing(event: Any, call: Any) -> None: ...


async def nothing_later(event: Any, call: Any) -> None: ...


def typed(event: Letter, call: Any) -> None: ...


def later(event: LaterStill, call: Any) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def tell(**options: Any) -> Effect:
    return Effect("tell", nothing, **options)


HOUR = timedelta(hours=1)
THREE = Retry(attempts=3, first=1.0)


@pytest.mark.parametrize(
    ("attempts", "age", "keeps", "asks", "expected"),
    [
        # attempts before, seconds since the first, hours that a key is known, whether reconcile is there
        (0, None, None, False, Run()),
        (0, None, 1, True, Run()),
        (1, 5.0, None, False, Run()),
        (2, 9e9, None, False, Run()),
        (1, 5.0, 1, False, Run()),
        # A try lasts up to a lease, 30 s: the key must be known until it has ended.
        (1, 3569.0, 1, False, Run()),
        (1, 3570.0, 1, True, Reconcile()),
        (2, 3600.0, 1, True, Reconcile()),
        (1, 3570.0, 1, False, "expired"),
        # Made due again by an operator, with tries as at first, and nobody knows what the old ones did.
        (0, 7200.0, 1, True, Reconcile()),
        (0, 7200.0, 1, False, "expired"),
        # Its processes were killed, each in a try that counts.
        (3, 5.0, None, False, "dead_lettered"),
        (4, 9e9, 1, True, "dead_lettered"),
    ],
)
def test_what_to_do_about_a_task_that_is_due(
    attempts: int, age: float | None, keeps: int | None, asks: bool, expected: Any
) -> None:
    options: dict[str, Any] = {"retry": THREE}
    if keeps is not None:
        options["keeps"] = keeps * HOUR
        if asks:
            options["reconcile"] = nothing
    found = before(tell(**options), attempts, age)
    assert (found.outcome if isinstance(found, Dead) else found) == expected


@pytest.mark.parametrize(
    ("attempts", "error", "expected"),
    [
        (1, ValueError("no"), Wait(1.0)),
        (2, SystemExit(1), Wait(2.0)),
        (3, ValueError("no"), Dead("dead_lettered", "ValueError: no")),
        (1, Rejected("never"), Dead("rejected", "Rejected: never")),
    ],
)
def test_what_to_do_about_a_failed_try(attempts: int, error: BaseException, expected: Any) -> None:
    assert after(tell(retry=THREE), attempts, error) == expected


def test_what_to_do_by_the_answer_of_reconcile() -> None:
    done = Done({"receipt": 1})
    assert reconciled(tell(), done) is done
    assert reconciled(tell(), Again()) == Run()
    for answer, why in (
        (None, "could not tell"),
        (True, "expected Done, Again or None"),
        (Again, "found <class"),
    ):
        found = reconciled(tell(), answer)
        assert isinstance(found, Dead)
        assert found.outcome == "expired"
        assert why in found.why


def test_a_key_is_the_same_in_every_process_and_release() -> None:
    assert str(call_of("tell", "4711")) == "7eae7951-4b28-5f2f-8aa1-8ed989c3c8a7"
    others = [call_of(*each) for each in (("tell", "a"), ("tell", "b"), ("tel", "la"))]
    assert len({*others, call_of("tell", "a", of_event=True)}) == 4
    assert step_of(call_of("tell", "a"), "x") != step_of(call_of("tell", "a"), "y")


def test_an_event_has_its_id_as_key_or_the_one_that_is_declared() -> None:
    own_id = UUID(int=7)
    event = Sent(to="ana").bound(EventMeta("letter/1", 1, event_id=own_id))
    assert (tell(on=Sent).key_of(event), tell(on=Sent).has_own_keys) == (str(own_id), False)
    own = tell(on=Sent, key=lambda event: event.to)
    assert (own.key_of(event), own.has_own_keys) == ("ana", True)
    assert tell(on=Sent, key=lambda event: None).key_of(event) is None
    with pytest.raises(EffectKeyError, match="found 7"):
        tell(on=Sent, key=lambda event: 7).key_of(event)


def test_an_effect_takes_the_events_that_are_named() -> None:
    assert [tell(on=Sent).takes(each) for each in (Sent, Read)] == [True, False]
    assert [tell(on=[Sent, Read]).takes(each) for each in (Sent, Read)] == [True, True]
    assert [tell().takes(each) for each in (Sent, Read)] == [False, False]


def test_the_model_of_data_is_that_of_the_annotation() -> None:
    assert Effect("tell", typed).model is Letter
    assert Effect("tell", nothing).model is None
    assert (Effect("tell", nothing_later).is_async, tell().is_async) == (True, False)


def test_the_decorator_makes_an_effect_that_can_be_called() -> None:
    @effect("tell", on=Sent)
    def made(event: Sent, call: Any) -> str:
        return f"{event.to} {call}"

    assert isinstance(made, Effect)
    assert made(Sent(to="ana"), "call") == "ana call"
    assert repr(made) == "Effect('tell')"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on": ()}, "at least one event class"),
        ({"on": [Sent, Letter]}, "expected event classes in on="),
        ({"key": str}, "key= is of events"),
        ({"lease": 0}, "lease must be more than 0"),
        ({"lease": float("nan")}, "lease must be more than 0"),
        ({"keeps": timedelta(seconds=30)}, "keeps must be longer than the lease of 30 s"),
        ({"keep": timedelta()}, "keep must be more than 0"),
        ({"reconcile": nothing}, "keeps=, which is missing"),
        ({"reconcile": nothing_later, "keeps": HOUR}, "expected reconcile= to be plain"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_declaration_that_makes_no_sense_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError, match=problem):
        tell(**options)


def test_a_function_of_another_shape_is_refused() -> None:
    with pytest.raises(DeclarationError, match="lower-case"):
        Effect("Tell", nothing)
    with pytest.raises(DeclarationError, match=r"expected a function of \(event, call\)"):
        Effect("tell", lambda event: None)  # type: ignore[misc,arg-type]
    with pytest.raises(DeclarationError, match="'LaterStill' of its first parameter cannot be read"):
        Effect("tell", later)


def test_an_application_has_its_effects_by_name() -> None:
    app = App(effects=[tell()])
    assert app.effect("tell").name == "tell"
    with pytest.raises(UnknownEffect, match="expected one of the effects tell, found 'tel'"):
        app.effect("tel")
    with pytest.raises(DeclarationError, match="'tell' stands twice"):
        App(effects=[tell(), tell()])


def test_a_cause_is_text_that_a_database_holds() -> None:
    assert cause_of(ValueError("a\x00b\ud800")) == "ValueError: a\\x00b\\ud800"
    assert cause_of(KeyError()) == "KeyError"
    assert len(cause_of(ValueError("x" * 5000))) == 2000
