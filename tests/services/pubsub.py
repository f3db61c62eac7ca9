"""Google's emulator of Pub/Sub where its jar is found, elsewhere a stand-in of ours with the same interface.

The jar comes with the Google Cloud CLI (google-cloud-cli-pubsub-emulator), which no public package index carries.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .service import Command, Recipe, Unavailable, connects

JAR = "ONEFOLD_PUBSUB_EMULATOR_JAR"
PLACES = (
    "/usr/lib/google-cloud-sdk",
    "/usr/share/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "~/google-cloud-sdk",
)
STAND_IN = Path(__file__).with_name("pubsub_stand_in.py")


def jar() -> Path | None:
    """The emulator's jar: the one that is named, else the newest in a folder of the Google Cloud CLI; None if none."""
    named = os.environ.get(JAR)
    if named:
        if not Path(named).is_file():
            raise Unavailable(
                f"expected the Pub/Sub emulator's jar at {named} ({JAR}), found no file; mend {JAR}"
            )
        return Path(named)
    for place in PLACES:
        found = sorted(
            Path(place).expanduser().glob("platform/pubsub-emulator/lib/cloud-pubsub-emulator-*.jar")
        )
        if found:
            return found[-1]
    return None


def emulator(folder: Path, ports: Sequence[int]) -> list[Command]:
    java, archive = shutil.which("java"), jar()
    if archive is None:
        raise Unavailable(
            f"expected the Pub/Sub emulator, found no jar; install google-cloud-cli-pubsub-emulator, "
            f"or name it in {JAR}"
        )
    if java is None:
        raise Unavailable("expected Java, found none; install it: apt-get install default-jre-headless")
    small = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return [Command([java, *small, "-jar", str(archive), "--host=127.0.0.1", f"--port={ports[0]}"])]


def stand_in(folder: Path, ports: Sequence[int]) -> list[Command]:
    if importlib.util.find_spec("google.pubsub_v1") is None:
        raise Unavailable("expected google-cloud-pubsub, found none; install it: make setup")
    return [Command([sys.executable, "-P", str(STAND_IN), str(ports[0])])]


def commands(folder: Path, ports: Sequence[int]) -> list[Command]:
    if jar() is None or shutil.which("java") is None:
        return stand_in(folder, ports)
    return emulator(folder, ports)


def url(port: int) -> str:
    return f"127.0.0.1:{port}"


PUBSUB = Recipe("Pub/Sub", commands, connects, url)
EMULATOR = Recipe("Pub/Sub (emulator)", emulator, connects, url)
PUBSUB_STAND_IN = Recipe("Pub/Sub (stand-in)", stand_in, connects, url)
