"""RabbitMQ, as Debian's rabbitmq-server brings it: one node, with an epmd, a cookie and a database of its own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from .service import Command, Recipe, Unavailable, replies

# Debian's own wrapper in /usr/sbin changes to another account.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
SETTINGS = """\
listeners.tcp.default = 127.0.0.1:{port}
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 1MB
max_message_size = 16777216
"""


def commands(folder: Path, ports: Sequence[int]) -> list[Command]:
    program = str(PROGRAM) if PROGRAM.exists() else shutil.which("rabbitmq-server")
    epmd = shutil.which("epmd")
    if program is None or epmd is None:
        raise Unavailable("expected RabbitMQ, found none; install it: apt-get install rabbitmq-server")
    port, distribution, names = ports
    (folder / "rabbitmq.conf").write_text(SETTINGS.format(port=port))
    (folder / "plugins").write_text("[].\n")
    env = {
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"onefold{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        # Schedulers that spin while they wait would take the machine from the tests.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none "
        "-kernel inet_dist_use_interface {127,0,0,1}",
        # The script then becomes the server, instead of its parent.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
    return [
        Command([epmd, "-port", str(names), "-address", "127.0.0.1"]),
        Command([program], env),
    ]


def answers(port: int) -> bool:
    # A frame of the type METHOD on channel 0: the server begins the handshake.
    return replies(port, b"AMQP\0\0\x09\x01", b"\x01\0\0")


RABBITMQ = Recipe(
    "RabbitMQ", commands, answers, lambda port: f"amqp://guest:guest@127.0.0.1:{port}/%2f", ports=3
)
