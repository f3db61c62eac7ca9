"""Files of a call (C45)."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from onefold.infrastructure.effects import file
from onefold.infrastructure.effects.call import Clients

from .making import KEY, async_call, calling


def test_a_file_is_written_whole_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "receipt.txt"
    target.write_text("old")
    with calling() as call:
        call.write(target, "Größe")
        call.write(tmp_path / "other.bin", b"\x00\x01")
    assert target.read_bytes() == "Größe".encode()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other.bin", "receipt.txt"]


def test_a_name_may_be_as_long_as_the_system_takes(tmp_path: Path) -> None:
    names = ["a" * 255, "ö" * 127, "b" * 200]
    with calling() as call:
        for name in names:
            call.write(tmp_path / name, name)
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {name: name for name in names}


def test_it_is_synced_before_it_is_renamed_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(number: int) -> None:
        steps.append("sync folder" if Path(f"/proc/self/fd/{number}").readlink().is_dir() else "sync file")
        fsync(number)

    def note_rename(path: Path, target: Any) -> Any:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    file.write(tmp_path / "a", b"x", "key")
    assert steps == ["sync file", "rename", "sync folder"]


def test_two_writers_of_one_key_never_show_a_part(tmp_path: Path) -> None:
    target, content = tmp_path / "receipt", b"x" * 200_000
    ended = threading.Event()
    parts: list[int] = []

    def look() -> None:
        while not ended.is_set():
            if target.exists() and (size := len(target.read_bytes())) != len(content):
                parts.append(size)

    looking = threading.Thread(target=look)
    looking.start()
    writers = [
        threading.Thread(target=lambda: [file.write(target, content, str(KEY)) for _ in range(20)])
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    ended.set()
    looking.join()
    assert parts == []
    assert [each.name for each in tmp_path.iterdir()] == ["receipt"]
    assert target.read_bytes() == content


def test_what_a_killed_writer_left_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / f".onefold-{KEY}-receipt").write_bytes(b"a part of something longer")
    file.write(tmp_path / "receipt", b"whole", str(KEY))
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("receipt", b"whole")]


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with calling() as call, pytest.raises(FileNotFoundError):
        call.write(tmp_path / "missing" / "receipt", b"x")


def test_an_async_function_writes_too(tmp_path: Path) -> None:
    asyncio.run(async_call(Clients()).write(tmp_path / "receipt", b"x"))
    assert (tmp_path / "receipt").read_bytes() == b"x"
