"""The configuration of the tree: from a file, from the environment, and what is wrong with either."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.infrastructure.supervision.configuration import (
    PREFIX,
    BadConfiguration,
    Configuration,
    Consume,
    Effects,
    Health,
    Maintain,
    Processes,
    Projections,
    Relay,
    Serve,
    load,
    members,
)

EVERYTHING = """
app = "shop:app"
grace = 10

[projections]
names = ["order_summary"]
metrics_port = 9100

[[consume]]
consumer = "payments"
url = "kafka://127.0.0.1:9092/payments?group=ledger"
processes = 2
lanes = 3

[[relay]]
channel = "orders"
to = "amqp://guest:secret@127.0.0.1/orders"

[effects]
workers = 4

[processes]

[serve]
port = 8080

[[command]]
name = "web"
run = ["uvicorn", "shop:web"]

[maintain]
every = 300

[health]
port = 8181
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "onefold.toml"
    path.write_text(text)
    return path


def test_each_part_of_a_file_becomes_processes(tmp_path: Path) -> None:
    configuration = load(written(tmp_path, EVERYTHING), {})
    found = {each.name: (*each.arguments, each.every) for each in members(configuration)}
    app = ("--app", "shop:app")
    consume = ("consume", "kafka://127.0.0.1:9092/payments?group=ledger", "--consumer", "payments", *app)
    assert found == {
        "projections": ("run", "order_summary", *app, "--metrics-port", "9100", None),
        "consume-payments-1": (*consume, "--lanes", "3", None),
        "consume-payments-2": (*consume, "--lanes", "3", None),
        "relay-orders": ("relay", "orders", "--to", "amqp://guest:secret@127.0.0.1/orders", *app, None),
        "effects": ("effects", *app, "--workers", "4", None),
        "processes": ("process", "--all", *app, None),
        "serve": ("serve", "--host", "127.0.0.1", "--port", "8080", None),
        "web": ("uvicorn", "shop:web", None),
        "maintain": ("maintain", 300.0),
    }
    assert (configuration.grace, configuration.health) == (10.0, Health(port=8181))


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    shown = {each.name: each.shown for each in members(load(written(tmp_path, EVERYTHING), {}))}
    assert "secret" not in " ".join(shown.values())
    assert shown["relay-orders"] == "onefold relay orders --to amqp://***@127.0.0.1/orders --app shop:app"
    assert shown["web"] == "uvicorn shop:web"


def test_the_environment_alone_is_enough_and_goes_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = {
        "ONEFOLD_UP_APP": "bank:app",
        "ONEFOLD_UP_PROJECTIONS": "*",
        "ONEFOLD_UP_CONSUME": "payments=file:a.jsonl  refunds=redis://127.0.0.1/0/refunds?block=1&x=y",
        "ONEFOLD_UP_RELAY": "orders=file:out.jsonl",
        "ONEFOLD_UP_EFFECTS": "mails receipts",
        "ONEFOLD_UP_PROCESSES": "*",
        "ONEFOLD_UP_SERVE": "0.0.0.0:80",
        "ONEFOLD_UP_HEALTH": "8181",
        "ONEFOLD_UP_MAINTAIN": "0",
        "ONEFOLD_UP_GRACE": "5",
        "OTHER": "x",
    }
    expected = Configuration(
        app="bank:app",
        grace=5,
        projections=Projections(),
        consume=(
            Consume(consumer="payments", url="file:a.jsonl"),
            Consume(consumer="refunds", url="redis://127.0.0.1/0/refunds?block=1&x=y"),
        ),
        relay=(Relay(channel="orders", to="file:out.jsonl"),),
        effects=Effects(names=("mails", "receipts")),
        processes=Processes(),
        serve=Serve(host="0.0.0.0", port=80),
        health=Health(port=8181),
        maintain=Maintain(every=0),
    )
    assert load(None, env) == expected
    assert "maintain" not in [each.name for each in members(expected)]
    written(tmp_path, EVERYTHING)
    both = load(None, {"ONEFOLD_UP_APP": "bank:app"})
    assert (both.app, both.grace) == ("bank:app", 10.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[projections", r"onefold.toml: expected TOML in UTF-8, found: "),
        ("[projektions]", r"onefold.toml: projektions: Extra inputs are not permitted"),
        ('[[consume]]\nurl = "file:a"', r"onefold.toml: consume.0.consumer: Field required"),
        ("[serve]\nport = 70000", r"onefold.toml: serve.port: Input should be less than or equal to 65535"),
        (
            '[[consume]]\nurl = "amqp://u:secret@h/q"\nconsumer = "a"\nprocesses = 2\nmetrics_port = 9',
            r"consume.0: Value error, a metrics_port is for one process",
        ),
        ('[[command]]\nname = "x"\nrun = []', r"command.0.run: Tuple should have at least 1 item"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_by_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadConfiguration, match=says) as caught:
        load(written(tmp_path, text), {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            {f"{PREFIX}NONE": "*"},
            f"{PREFIX}NONE: expected {PREFIX} followed by one of APP",
        ),
        ({"ONEFOLD_UP_CONSUME": "kafka://secret"}, "ONEFOLD_UP_CONSUME: expected NAME=URL"),
        ({"ONEFOLD_UP_GRACE": "soon"}, "ONEFOLD_UP_GRACE: grace: Input should be a valid number"),
    ],
)
def test_what_is_wrong_in_the_environment_is_told_by_its_variable(env: dict[str, str], says: str) -> None:
    with pytest.raises(BadConfiguration, match=says) as caught:
        load(None, env)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"other.toml: cannot be read: No such file"):
        load(tmp_path / "other.toml", {})


def test_nothing_to_run_and_the_same_twice_are_refused() -> None:
    with pytest.raises(BadConfiguration, match="expected something to run, found nothing"):
        members(Configuration())
    twice = Configuration(relay=(Relay(channel="a", to="file:x"), Relay(channel="a", to="file:y")))
    with pytest.raises(BadConfiguration, match="relay-a stands twice"):
        members(twice)
    named = Configuration(relay=(Relay(channel="a", to="file:x"), Relay(channel="a", to="file:y", name="b")))
    assert [each.name for each in members(named)] == ["relay-a", "relay-b", "maintain"]
