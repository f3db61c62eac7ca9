"""Moto's server, which answers as SQS does. What it holds is lost when it ends.

Where it differs from SQS: it forgets the deduplication id of a message with the message, not after five minutes; when
several messages of a FIFO group come back because nobody deleted them in time, the last of them comes first; the
receipt of an earlier delivery still deletes a message and extends its visibility.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from .service import Command, Recipe, Unavailable, replies

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def commands(folder: Path, ports: Sequence[int]) -> list[Command]:
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask_cors") is None:
        raise Unavailable("expected moto and its server, found none; install them: make setup")
    return [Command([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(ports[0])])]


def answers(port: int) -> bool:
    return replies(port, b"GET /moto-api/data.json HTTP/1.0\r\n\r\n", b"HTTP/1.1 200")


SQS = Recipe("SQS (moto)", commands, answers, lambda port: f"http://127.0.0.1:{port}")
