"""Health over HTTP: alive as long as it answers, ready without troubles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from onefold.infrastructure.supervision.health import HealthUnavailable, database_trouble, serving


def asked(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", method=method), timeout=10) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body else None
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or "null")


def test_it_is_ready_without_troubles_and_tells_those_there_are() -> None:
    troubles: dict[str, str] = {}
    with serving("127.0.0.1", 0, lambda: troubles) as port:
        assert asked(port, "/ready") == (200, {"ready": True, "troubles": {}})
        troubles["projections"] = "ended with 1: the disk is full"
        assert asked(port, "/ready?verbose") == (503, {"ready": False, "troubles": troubles})
        assert asked(port, "/live") == (200, {"live": True})
        assert asked(port, "/live", "HEAD") == (200, None)
        assert asked(port, "/other")[0] == 404


def test_a_port_that_is_taken_is_told() -> None:
    with (
        serving("127.0.0.1", 0, dict) as port,
        pytest.raises(HealthUnavailable, match=f"127.0.0.1:{port}, found: Address already in use"),
        serving("127.0.0.1", port, dict),
    ):
        pass


def test_a_database_that_does_not_answer_or_is_not_migrated_is_trouble(
    database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    assert database_trouble(database_url) is None
    assert "found" in (database_trouble(empty_database_url) or "")
    assert (database_trouble(f"host={tmp_path}") or "").startswith("cannot be reached: ")
