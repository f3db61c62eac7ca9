"""The sealer: what it seals, when, and what it refuses."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from onefold.domain.content import FIRST, JSON, canonical_json, content_hash, event_hash, fields_of
from onefold.domain.merkle import root_of
from onefold.infrastructure.connection import connected
from onefold.infrastructure.history import UnknownLog
from onefold.infrastructure.sealing import contents
from onefold.infrastructure.sealing.contents import Contents
from onefold.infrastructure.sealing.errors import HandedOutDiffers, SealFileError, SealRefused
from onefold.infrastructure.sealing.following import follow
from onefold.infrastructure.sealing.handed import read
from onefold.infrastructure.sealing.sealer import Sealed, Sealer
from onefold.infrastructure.sealing.stored import seals
from onefold.infrastructure.sealing.verifying import verify

from .conftest import append, sealed, superuser

ODD = (
    '{"b": 24.90, "aa": [1e2, -0.0, 1E-7, 123456789012345678901234567890], "ä€😀": {"x": null, "": true},'
    ' "t": "\\u0001\\u001f\\u007f\\"\\\\/\\b\\f\\n\\r\\t \\u2028", "e": [], "o": {}}'
)


def test_the_root_is_that_of_the_hashes_and_these_chain_each_stream(sealed_url: str) -> None:
    with psycopg.connect(sealed_url, autocommit=True) as connection:
        leaves: list[bytes] = []
        last: dict[bytes, bytes] = {}
        for _, content in Contents(connection, "events").between(1, 24):
            stream = fields_of(content)[6]
            assert stream is not None
            last[stream] = event_hash(last.get(stream, FIRST), content_hash(content))
            leaves.append(last[stream])
        kept = connection.execute("SELECT hash FROM onefold.events_hashes ORDER BY position").fetchall()
        assert [leaf for (leaf,) in kept] == leaves
        found = [each.seal for each in seals(connection, "events")]
    assert [(seal.number, seal.first, seal.last, seal.events, seal.size) for seal in found] == [
        (1, 1, 10, 10, 10),
        (2, 11, 20, 10, 20),
        (3, 21, 24, 4, 24),
    ]
    assert [seal.root for seal in found] == [root_of(leaves[: seal.size]) for seal in found]
    assert found[0].follows(None)
    assert found[1].follows(found[0])
    assert found[2].follows(found[1])


def test_sealing_goes_on_where_it_ended(sealed_url: str, file: Path) -> None:
    assert sealed(sealed_url, file) == Sealed(upto=24)
    with psycopg.connect(sealed_url, autocommit=True) as connection:
        append(connection, "order/1", 7)
        append(connection, "order/9", 1)
    assert sealed(sealed_url, file) == Sealed(seals=1, events=2, handed_out=1, upto=26)
    assert verify(sealed_url, against=file).intact
    assert [each.seal.number for each in read(file)] == [1, 2, 3, 4]


def test_an_empty_log_is_not_sealed(database_url: str) -> None:
    assert sealed(database_url) == Sealed()
    assert verify(database_url).intact


def test_what_an_open_append_may_still_fill_is_not_sealed(url: str) -> None:
    with psycopg.connect(url) as late, psycopg.connect(url, autocommit=True) as other:
        append(late, "order/1", 7)
        append(other, "order/2", 7)
        done = sealed(url)
        assert (done.upto, done.waiting) == (24, True)
        late.commit()
    assert sealed(url).upto == 26
    assert verify(url).events == 26


def test_an_open_append_is_waited_for(url: str) -> None:
    with psycopg.connect(url) as late, connected(url) as connection:
        append(late, "order/1", 7)
        with psycopg.connect(url, autocommit=True) as other:
            append(other, "order/2", 7)
        timer = threading.Timer(0.3, late.commit)
        timer.start()
        done = Sealer(connection).run(patience=10)
        timer.join()
    assert (done.upto, done.events, done.waiting) == (26, 26, False)


def test_holes_are_part_of_what_is_sealed(url: str) -> None:
    with psycopg.connect(url) as connection:
        append(connection, "order/1", 7)
        connection.rollback()
        append(connection, "order/1", 7)
        connection.commit()
    done = sealed(url)
    assert (done.events, done.upto) == (25, 26)
    assert verify(url).intact


def test_writers_do_not_wait_for_the_sealer(url: str) -> None:
    with connected(url) as sealing, psycopg.connect(url, autocommit=True) as writer:
        sealer = Sealer(sealing)
        with sealing.transaction():
            sealer.run()
            writer.execute("SET lock_timeout = '200ms'")
            append(writer, "order/1", 7)
    assert verify(url).unsealed == 1


def test_one_sealer_is_at_a_log_at_a_time(url: str) -> None:
    with connected(url) as one, connected(url) as other:
        first = Sealer(one)
        second = Sealer(other)
        states: list[Sealed] = []
        first.run(progress=lambda _seal: states.append(second.run()))
    assert [state.busy for state in states] == [True]
    assert sealed(url).busy is False


def test_each_log_has_seals_of_its_own(url: str) -> None:
    with connected(url) as connection:
        connection.execute("SELECT onefold.create_log('onefold', 'shop_events')")
        connection.execute(
            "INSERT INTO onefold.shop_events (version, event_id, stream, type, raw)"
            " VALUES (0, gen_random_uuid(), 'a', 'x.y', '\\x00'), (1, gen_random_uuid(), 'a', 'x.y', '\\x01')"
        )
        assert Sealer(connection, log="shop_events").run().events == 2
        with pytest.raises(UnknownLog):
            Sealer(connection, log="others")
    assert verify(url, log="shop_events").events == 2
    assert verify(url).seals == 0
    with superuser(url) as connection:
        connection.execute("ALTER TABLE onefold.shop_events DISABLE TRIGGER ALL")
        connection.execute("UPDATE onefold.shop_events SET raw = '\\x02' WHERE version = 1")
    (finding,) = verify(url, log="shop_events").findings
    assert (finding.position, finding.columns) == (2, ("raw",))


def test_nothing_is_sealed_on_top_of_a_log_that_was_changed(sealed_url: str) -> None:
    with superuser(sealed_url) as connection:
        append(connection, "order/1", 7)
        connection.execute("DELETE FROM onefold.events_hashes WHERE stream = 'order/1' AND version = 6")
    with pytest.raises(
        SealRefused, match="expected version 6 of stream order/1 before version 7 at position 25"
    ):
        sealed(sealed_url)
    with superuser(sealed_url) as connection:
        connection.execute("UPDATE onefold.seals SET root = sha256('x') WHERE number = 3")
    with pytest.raises(SealRefused, match="expected seal 3 of log events as it was made, found it altered"):
        sealed(sealed_url)


def test_nothing_is_handed_out_on_top_of_seals_of_another_history(sealed_url: str, file: Path) -> None:
    with superuser(sealed_url) as connection:
        connection.execute("DELETE FROM onefold.seals WHERE number = 3")
        connection.execute("DELETE FROM onefold.events_hashes WHERE position > 20")
    with pytest.raises(
        HandedOutDiffers, match=r"expected seal 3 of log events as it was handed out .* found none"
    ):
        sealed(sealed_url, file)
    sealed(sealed_url)
    with pytest.raises(HandedOutDiffers, match="found another in the database"):
        sealed(sealed_url, file)


def test_altered_seals_are_not_handed_out(url: str, file: Path) -> None:
    sealed(url)
    with superuser(url) as connection:
        connection.execute("UPDATE onefold.seals SET marks = marks || marks WHERE number = 2")
    with pytest.raises(HandedOutDiffers, match="expected seal 2 of log events as it was made"):
        sealed(url, file)
    assert [each.seal.number for each in read(file)] == [1]


def test_a_line_that_was_broken_off_is_written_again(sealed_url: str, file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-50])
    assert sealed(sealed_url, file).handed_out == 1
    assert [each.seal.number for each in read(file)] == [1, 2, 3]
    assert file.read_bytes().startswith(whole[:-50] + b"\n")
    assert verify(sealed_url, against=file).intact


def test_a_file_that_is_none_of_seals_is_refused(sealed_url: str, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text('{"a": 1}\n')
    with pytest.raises(SealFileError, match=r"expected a seal in line 1 of .*other, found none"):
        verify(sealed_url, against=other)
    with pytest.raises(SealFileError, match=r"expected handed-out seals in .*nowhere, found none"):
        verify(sealed_url, against=tmp_path / "nowhere")
    with pytest.raises(SealFileError, match="cannot be handed out"):
        sealed(sealed_url, tmp_path / "no" / "where")
    line = json.loads(file.read_text("utf-8").splitlines()[0])
    other.write_text(json.dumps(line | {"size": 11}) + "\n")
    with pytest.raises(SealFileError, match="its hash is not that of its statement"):
        verify(sealed_url, against=other)


def test_seals_and_hashes_cannot_be_changed(sealed_url: str) -> None:
    with psycopg.connect(sealed_url, autocommit=True) as connection:
        for table in ("seals", "events_hashes"):
            for statement in ("DELETE FROM {}", "TRUNCATE {}", "UPDATE {} SET hash = hash"):
                with pytest.raises(
                    psycopg.errors.InsufficientPrivilege, match="seals and hashes are append-only"
                ):
                    connection.execute(statement.format(f"onefold.{table}"))  # type: ignore[arg-type]


def test_the_servers_form_is_the_canonical_one(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(
        "INSERT INTO onefold.events (version, event_id, stream, type, data)"
        " VALUES (1, gen_random_uuid(), 'x/1', 'y', %s)",
        (ODD,),
    )
    assert contents.is_canonical(connection)
    reader = Contents(connection, "events")
    assert reader.direct
    ((_, content),) = reader.between(1, 1)
    assert fields_of(content)[8] == JSON + canonical_json(ODD).encode()
    # A server that writes in another way has its rows rewritten.
    monkeypatch.setattr(contents, "is_canonical", lambda _connection: False)
    again = Contents(connection, "events")
    assert not again.direct
    assert list(again.between(1, 1)) == [(1, content)]


def test_the_log_is_sealed_as_it_grows(url: str, file: Path) -> None:
    stop = threading.Event()
    done: list[Sealed] = []
    thread = threading.Thread(
        target=lambda: done.append(follow(url, stop.is_set, to=file, every=0.05)), daemon=True
    )
    thread.start()
    try:
        deadline = time.monotonic() + 20
        with psycopg.connect(url, autocommit=True) as connection:
            for version in (7, 8, 9):
                append(connection, "order/1", version)
                while verify(url).unsealed:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                # Its connection is lost, and it goes on.
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onefold seal'"
                    " AND datname = current_database()"
                )
    finally:
        stop.set()
        thread.join(20)
    assert done[0].events == 27
    assert verify(url, against=file).intact


@pytest.mark.skipif(os.cpu_count() == 1, reason="one processor: no processes are started")
def test_several_processes_find_the_same(
    sealed_url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onefold.infrastructure.sealing import verifying

    with superuser(sealed_url) as connection:
        connection.execute("UPDATE onefold.events SET data = '{}' WHERE position IN (7, 22)")
    alone = verify(sealed_url, against=file)
    monkeypatch.setattr(verifying, "BY_ITSELF", 0)
    together = verify(sealed_url, against=file, processes=2)
    assert [each.position for each in alone.findings] == [7, 22]
    assert together == alone
