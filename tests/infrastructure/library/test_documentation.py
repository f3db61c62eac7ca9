"""What the reference shows is what runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onefold.domain.order import Order

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "eventsourcing.md"


def test_the_application_of_the_reference_saves_and_loads_an_order() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "reference"}
    exec(compile(code, str(PAGE), "exec"), names)
    noon = datetime(2024, 2, 29, 12, tzinfo=UTC)
    order = Order.new("1")
    order.emit(Order.Placed(customer_id="alice", currency="EUR", placed_on=noon.date()), at=noon)
    order.confirm(at=noon)
    with names["Shop"]() as shop:
        shop.save(order)
        shop.take_snapshot(order.id)
        loaded: Order = shop.repository.get("order/1")
    assert (loaded.status, loaded.customer_id, loaded.version) == ("confirmed", "alice", 2)
