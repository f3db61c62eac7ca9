"""A broker is found by the scheme of its URL, and what is missing for it is named."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from onefold.infrastructure import brokers
from onefold.infrastructure.brokers import BadBrokerURL, MissingExtra, publisher, subscribe

NEEDS = [kind for kind in brokers._KINDS.items() if kind[1].client is not None]


@pytest.mark.parametrize(
    "url", ["", "payments", "http://host/x", "KAFKA+x://host/t", "//host/t", "kafka//host"]
)
def test_a_scheme_that_nobody_knows_is_refused_with_those_that_are_known(url: str) -> None:
    for use in (lambda: subscribe(url, "c"), lambda: publisher(url)):
        with pytest.raises(
            BadBrokerURL, match=r"kafka:, .*redis:, .*file:, log:, memory: or - for standard input"
        ):
            use()


def test_a_path_without_a_scheme_is_told_how_a_file_is_named() -> None:
    with pytest.raises(BadBrokerURL, match="found no scheme; a file is named as file:PATH"):
        subscribe("payments.jsonl", "c")


@pytest.mark.parametrize("url", ["kafka://[::1/topic", "amqp://[half"])
def test_an_url_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(BadBrokerURL, match="cannot be read"):
        subscribe(url, "c")


def test_a_scheme_may_be_in_capitals() -> None:
    subscribe("MEMORY://capitals", "c").close()


@pytest.mark.parametrize(("scheme", "kind"), NEEDS, ids=[scheme for scheme, _ in NEEDS])
def test_a_client_that_is_not_installed_is_named_with_what_installs_it(
    scheme: str, kind: brokers._Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str, *_: Any) -> Any:
        if name == kind.client:
            raise ImportError(name)
        return builtins.__import__(name)

    monkeypatch.setattr(brokers, "import_module", absent)
    assert kind.client is not None
    with pytest.raises(MissingExtra, match=rf"the package {kind.package}, .* 'onefold\[{kind.extra}\]'"):
        subscribe(f"{scheme}://host/x", "c")


@pytest.mark.parametrize("module", sorted({kind.module for kind in brokers._KINDS.values()}))
def test_every_adapter_subscribes_and_publishes(module: str) -> None:
    adapter = brokers.import_module(f"onefold.infrastructure.brokers.{module}")
    assert callable(adapter.subscribe)
    assert callable(adapter.publisher)
