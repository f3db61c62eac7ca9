"""URLs of brokers are shown without what must not be seen."""

from __future__ import annotations

import pytest

from onefold.infrastructure.brokers.options import shown


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("-", "-"),
        ("file:/data/messages.jsonl", "file:/data/messages.jsonl"),
        ("kafka://h:9092/payments?group=ledger", "kafka://h:9092/payments?group=ledger"),
        ("kafka://h/t?sasl.password=hidden&group=g", "kafka://h/t?sasl.password=***&group=g"),
        ("amqp://ada:hid@den@h:5672/shop?queue=q", "amqp://***@h:5672/shop?queue=q"),
        ("sqs://q?region=r&secret_key=hidden", "sqs://q?region=r&secret_key=***"),
        ("amqp://ada:hidden@[::1/q", "a URL that cannot be read"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, safe: str) -> None:
    assert shown(url) == safe
