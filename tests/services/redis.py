"""Redis, as Debian's redis-server brings it. What it holds is lost when it ends, unless it is asked to be durable."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from .service import Command, Recipe, Unavailable, replies


def recipe(*, durable: bool = False) -> Recipe:
    """Redis; `durable` writes every command to disk before it is answered, and has it again after a start."""
    append = ["--appendonly", "yes", "--appendfsync", "always"] if durable else ["--appendonly", "no"]

    def commands(folder: Path, ports: Sequence[int]) -> list[Command]:
        program = shutil.which("redis-server")
        if program is None:
            raise Unavailable("expected Redis, found none; install it: apt-get install redis-server")
        place = ["--bind", "127.0.0.1", "--port", str(ports[0]), "--dir", str(folder)]
        return [Command([program, *place, "--save", "", *append])]

    return Recipe("Redis", commands, answers, lambda port: f"redis://127.0.0.1:{port}/0")


def answers(port: int) -> bool:
    return replies(port, b"PING\r\n", b"+PONG\r\n")


REDIS = recipe()
