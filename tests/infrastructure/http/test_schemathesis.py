"""Whatever the description of the shop's API allows, and what it forbids, is answered as it says."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from onefold.infrastructure.http.shop import shop_api
from onefold.infrastructure.store import Store

from .desk import Client
from .serving import served
from .test_shop import ORDER

EXAMPLES = 15


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_no_request_makes_the_server_fail_and_every_response_is_as_described(
    store: Store, mode: GenerationMode
) -> None:
    with served(shop_api(store)) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        shop = Client(url)
        assert shop.post("/orders", "o", json={**ORDER, "order_id": "1"}).status_code == 201
        assert shop.post("/accounts", "a", json={"account_id": "1", "currency": "EUR"}).status_code == 201
        shop.http.close()
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) == 12
        for operation in operations:

            @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans(), again=st.booleans())
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: Any, real: bool, again: bool) -> None:
                left_out = []
                if mode is GenerationMode.POSITIVE:
                    if case.method != "GET":
                        case.headers["Idempotency-Key"] = f'"{uuid4()}"'
                    for name in case.path_parameters if real else ():
                        case.path_parameters[name] = "1"
                    if "If-Match" in case.headers:
                        # 412 is an answer to what is valid, too.
                        left_out = [positive_data_acceptance]
                case.call_and_validate(timeout=30, excluded_checks=left_out)
                if again:
                    case.call_and_validate(timeout=30, excluded_checks=left_out)

            ask()
