"""A shop on a fresh database, whose process has begun."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .shopping import Shop, shopping


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    with shopping(database_url) as made:
        made.run()
        made.open()
        yield made
