"""The benchmark of the ledger: that it measures what it says, on ledgers of a small size."""

from __future__ import annotations

import math

import pytest

from ...bench import ledger


def test_claims_and_duplicates_of_both_ledgers_are_measured(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C85, C90: claims a second, microseconds for a duplicate, and the cost of a purge beside that of DELETE."""
    monkeypatch.setattr(ledger, "BATCH", 20)
    monkeypatch.setattr(ledger, "BATCHES", 3)
    times = ledger.fill(database_url, 2_000)
    with ledger.cases(database_url, times) as cases:
        found = {case.name: {who: run() for who, run in case.contenders.items()} for case in cases}
    assert set(found) == {
        "ledger, any keys: claims",
        "ledger, any keys: duplicates",
        "ledger, time-ordered keys: claims",
        "ledger, time-ordered keys: duplicates",
        "ledger: purge of 1,000 keys",
    }
    for figures in found.values():
        assert "onefold" in figures
        assert all(0 < figure < math.inf for figure in figures.values())
