"""Servers of the world outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .outside import Mails, Payments


@pytest.fixture
def payments() -> Iterator[Payments]:
    made = Payments()
    yield made
    made.close()


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mails]:
    """A server that takes mails, and that ONEFOLD_SMTP_URL names."""
    made = Mails()
    monkeypatch.setenv("ONEFOLD_SMTP_URL", made.url)
    yield made
    made.close()
