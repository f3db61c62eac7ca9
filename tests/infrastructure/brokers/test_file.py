"""Files of messages: every line arrives once a reading, whole or broken, and the end is told."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from urllib.parse import quote

import pytest

from onefold.infrastructure.brokers import (
    BadBrokerURL,
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    MissingFile,
    Outgoing,
    file,
    publisher,
    subscribe,
)
from onefold.infrastructure.brokers.file import LINE, STRUCTURED


def url(path: Path) -> str:
    return f"file:{quote(str(path))}"


def everything(where: str, limit: int = 100) -> list[Delivery]:
    subscription = subscribe(where, "c")
    found: list[Delivery] = []
    while not subscription.ended:
        found.extend(subscription.receive(limit, 0.1))
    subscription.close()
    return found


def told(deliveries: list[Delivery]) -> list[tuple[str, bytes]]:
    return [(delivery.place, delivery.body) for delivery in deliveries]


def event(number: int) -> Outgoing:
    return Outgoing(f'{{"id":"{number}"}}'.encode(), {"content-type": STRUCTURED}, "k")


def test_lines_are_delivered_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\n{"a":1}\n  \r\nnot json\n{"b":2}')
    assert told(everything(url(path))) == [
        ("x.jsonl:2", b'{"a":1}'),
        ("x.jsonl:4", b"not json"),
        ("x.jsonl:5", b'{"b":2}'),
    ]


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n \n"])
def test_a_file_without_messages_ends(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    assert everything(url(path)) == []


def test_a_byte_order_mark_is_no_part_of_the_first_message(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\n\xef\xbb\xbf{}\n")
    assert [delivery.body for delivery in everything(url(path))] == [b"{}", b"\xef\xbb\xbf{}"]


def test_compressed_files_are_read_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(
        gzip.compress(b"one\nt") + gzip.compress(b"wo\n") + gzip.compress(b"three") + b"\0" * 100_000
    )
    assert told(everything(url(path))) == [
        ("x.jsonl.gz:1", b"one"),
        ("x.jsonl.gz:2", b"two"),
        ("x.jsonl.gz:3", b"three"),
    ]


@pytest.mark.parametrize("keep", [0, 5, 20, 200, 2000])
def test_a_compressed_file_that_breaks_off_is_told_after_what_it_holds(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x.jsonl.gz"
    whole = gzip.compress(b"".join(os.urandom(8).hex().encode() + b"\n" for _ in range(500)))
    path.write_bytes(whole[:keep])
    with pytest.raises(BrokerMisconfigured, match=r"x\.jsonl\.gz:\d+: .*found the end of the file"):
        everything(url(path))


def test_few_compressed_bytes_may_hold_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"x" * 99 + b"\n" * 3_000_000 + b"last"))
    assert [place for place, _ in told(everything(url(path)))] == ["x.jsonl.gz:1", "x.jsonl.gz:3000001"]


def test_what_is_not_compressed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(b'{"a":1}\n')
    with pytest.raises(BrokerMisconfigured, match="expected data compressed by gzip"):
        everything(url(path))


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "LINE", 200_000)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 150_000 + b"\n" + b"y" * 300_000)
    subscription = subscribe(url(path), "c")
    assert [len(delivery.body) for delivery in subscription.receive(10, 0.1)] == [2, 150_000]
    with pytest.raises(BrokerMisconfigured, match=r"x\.jsonl:3: expected a line of up to 200000 bytes"):
        subscription.receive(10, 0.1)
    assert not subscription.ended


@pytest.mark.parametrize("name", ["big.jsonl", "big.jsonl.gz"])
def test_memory_stays_flat(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    line = b'{"specversion":"1.0","data":"' + b"x" * 470 + b'"}\n'
    with gzip.open(path, "wb", compresslevel=1) if name.endswith("gz") else path.open("wb") as out:
        for _ in range(40):
            out.write(line * 1000)
    subscription = subscribe(url(path), "c")
    count = 0
    tracemalloc.start()
    try:
        while not subscription.ended:
            found = subscription.receive(500, 0.1)
            subscription.acknowledge(found)
            count += len(found)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 40_000
    # The file is 20 MB.
    assert peak < 6e6


def test_a_pipe_is_waited_for_and_ends_with_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    subscription = subscribe(url(path), "c")
    assert list(subscription.receive(10, 0.05)) == []
    assert not subscription.ended
    with path.open("wb", buffering=0) as writer:
        writer.write(b"one\ntw")
        assert [delivery.body for delivery in subscription.receive(10, 5)] == [b"one"]
        began = time.monotonic()
        assert list(subscription.receive(10, 0.2)) == []
        assert 0.15 < time.monotonic() - began < 2
        writer.write(b"o\n")
        assert [delivery.body for delivery in subscription.receive(10, 5)] == [b"two"]
        writer.write(b"three")
    found: list[Delivery] = []
    while not subscription.ended:
        found.extend(subscription.receive(10, 0.2))
    assert told(found) == [("pipe:3", b"three")]


SCRIPT = """
import sys
from onefold.infrastructure.brokers import subscribe
subscription = subscribe(sys.argv[1], "c")
while not subscription.ended:
    for delivery in subscription.receive(10, 0.2):
        print(delivery.place, delivery.body.decode(), flush=True)
subscription.close()
"""


@pytest.mark.parametrize("where", ["-", "file:-"])
def test_standard_input_is_read(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, where], input=b"{}\n[]", capture_output=True, check=True, timeout=60
    )
    assert done.stdout.decode().splitlines() == ["standard input:1 {}", "standard input:2 []"]


def test_standard_output_is_written() -> None:
    script = (
        "from onefold.infrastructure.brokers import *\n"
        f"publisher('-').publish([Outgoing(b'{{}}', {{'content-type': {STRUCTURED!r}}})])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
    assert done.stdout == b"{}\n"


def test_what_was_given_back_comes_again_in_order_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"1\n2\n3\n")
    subscription = subscribe(url(path), "c")
    found = subscription.receive(10, 0.1)
    subscription.acknowledge(found[:1])
    subscription.give_back([found[2], found[1]], delay=0.3)
    assert not subscription.ended
    assert list(subscription.receive(10, 0.05)) == []
    began = time.monotonic()
    assert [delivery.body for delivery in subscription.receive(10, 5)] == [b"2", b"3"]
    assert time.monotonic() - began < 2
    assert subscription.ended
    subscription.give_back(found[:1])
    assert subscription.ended


@pytest.mark.parametrize(
    "bad", ["file:", "file://host/x.jsonl", "file:/x.jsonl?y=1", "file:/x.jsonl#1", "file:/x%00y"]
)
def test_an_url_of_no_file_is_refused(bad: str) -> None:
    for use in (lambda: subscribe(bad, "c"), lambda: publisher(bad)):
        with pytest.raises(BadBrokerURL):
            use()


def test_an_url_may_name_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ä b?#%.jsonl"
    path.write_bytes(b"{}\n")
    assert len(everything(url(path))) == 1
    assert len(everything(f"file://localhost{quote(str(path))}")) == 1
    monkeypatch.chdir(tmp_path)
    assert len(everything(f"file:{quote(path.name)}")) == 1


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="No such file"):
        subscribe(url(tmp_path / "missing"), "c")
    with pytest.raises(MissingFile, match="a folder"):
        subscribe(url(tmp_path), "c")
    with pytest.raises(BrokerMisconfigured, match="written"):
        publisher(url(tmp_path))
    with pytest.raises(BrokerMisconfigured, match="No such file"):
        publisher(url(tmp_path / "missing" / "x.jsonl"))


def test_messages_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for number in (1, 2):
        out = publisher(url(path))
        out.publish([event(number), event(number + 10)])
        out.close()
        out.close()
    assert path.read_text() == '{"id":"1"}\n{"id":"11"}\n{"id":"2"}\n{"id":"12"}\n'
    with pytest.raises(BrokerLost, match="closed"):
        out.publish([event(3)])


def test_what_a_killed_publisher_left_becomes_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id":"1"}\n{"id":')
    out = publisher(url(path))
    out.publish([event(2)])
    out.publish([event(3)])
    assert [delivery.body for delivery in everything(url(path))] == [
        b'{"id":"1"}',
        b'{"id":',
        b'{"id":"2"}',
        b'{"id":"3"}',
    ]


@pytest.mark.parametrize(
    "message",
    [
        Outgoing(b"{\n}", {"content-type": STRUCTURED}),
        Outgoing(b"{}", {"content-type": "application/json"}),
        Outgoing(b"{}"),
    ],
)
def test_what_a_file_cannot_carry_is_refused(tmp_path: Path, message: Outgoing) -> None:
    path = tmp_path / "x.jsonl"
    refused = publisher(url(path)).publish([event(1), message, event(2)])
    assert list(refused) == [1]
    assert "write messages structured" in refused[1]
    assert path.read_bytes().count(b"\n") == 2


def test_a_line_that_nobody_could_read_is_refused(tmp_path: Path) -> None:
    large = event(1)
    refused = publisher(url(tmp_path / "x.jsonl")).publish(
        [Outgoing(large.body + b" " * LINE, large.headers), event(2)]
    )
    assert list(refused) == [0]
    assert "67,108,864 bytes" in refused[0]


def test_no_compressed_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(BrokerMisconfigured, match="compress the file when it is complete"):
        publisher(url(tmp_path / "x.jsonl.gz"))


def test_publishers_at_once_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    def publish(name: int) -> None:
        out = publisher(url(path))
        for number in range(30):
            out.publish([event(name * 100 + number)] * 5)
        out.close()

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4 * 30 * 5
    assert set(lines) == {event(name * 100 + number).body for name in range(4) for number in range(30)}


def test_a_full_disk_is_told() -> None:
    out = publisher("file:/dev/full")
    with pytest.raises(BrokerLost, match="No space left"):
        out.publish([event(1)])
