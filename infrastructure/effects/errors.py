"""Errors of calls."""

from __future__ import annotations

from ...domain.errors import OnefoldError


class LeaseLost(OnefoldError):
    """A call went on after it was done, or after its lease had ended, when another runner may be at the same."""

    def __init__(self, effect: str, key: str) -> None:
        super().__init__(
            f"effect {effect}: expected the call of key {key!r} to hold its lease, found that it has ended; nothing "
            "more is sent here: what a function starts must end with it, and another runner may have the call by now"
        )


class SecondRequest(OnefoldError):
    """A call has made a second request or mail, which cannot have the key of the first."""

    def __init__(self, effect: str, what: str) -> None:
        super().__init__(
            f"effect {effect}: expected one {what} in a call, found another one that differs from the first, whose key "
            'it would share; make it in a step of its own, call.step("name"), which has a key that is stable too'
        )
