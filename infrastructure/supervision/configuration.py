"""The configuration of `onefold up`: which parts run, from a file in TOML and from the environment."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...domain.errors import OnefoldError
from ..brokers.options import shown

FILE = "onefold.toml"
PREFIX = "ONEFOLD_UP_"
Names = tuple[str, ...]
Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1, le=64)]


class BadConfiguration(OnefoldError, ValueError):
    """The configuration of `onefold up` cannot be read, or says what cannot be."""


class Part(BaseModel):
    """What all parts of a configuration have: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Projections(Part):
    """Projections that are kept up with their log: those named, all of the application without names."""

    names: Names = ()
    metrics_port: Port | None = None


class Consume(Part):
    """A consumer at work on a broker's messages; `processes` of them side by side."""

    consumer: str
    url: str
    processes: Count = 1
    lanes: Count | None = None
    metrics_port: Port | None = None

    @model_validator(mode="after")
    def _one_port_one_process(self) -> Self:
        if self.processes > 1 and self.metrics_port:
            raise ValueError("a metrics_port is for one process: give 0, or leave it out")
        return self


class Relay(Part):
    """A relay that publishes a channel to a broker; `processes` of them side by side."""

    channel: str
    to: str
    name: str | None = None
    processes: Count = 1


class Effects(Part):
    """Effects that are made: those named, all of the application without names."""

    names: Names = ()
    workers: Count | None = None


class Processes(Part):
    """Process managers at work: those named, all of the application without names."""

    names: Names = ()


class Serve(Part):
    """The bundled shop's API."""

    host: str = "127.0.0.1"
    port: Port = 8000


class Command(Part):
    """A program of your own that runs with the others, such as a web server."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")]
    run: Annotated[tuple[str, ...], Field(min_length=1)]


class Maintain(Part):
    """The upkeep of the ledgers, each so many seconds; 0 for never."""

    every: Annotated[float, Field(ge=0)] = 60.0


class Health(Part):
    """Where `/live` and `/ready` are answered; without a port nowhere."""

    host: str = "127.0.0.1"
    port: Port | None = None


class Configuration(Part):
    """What `onefold up` runs. `grace` is the seconds that the parts have to end when told to stop."""

    app: str | None = None
    grace: Annotated[float, Field(gt=0)] = 30.0
    projections: Projections | None = None
    consume: tuple[Consume, ...] = ()
    relay: tuple[Relay, ...] = ()
    effects: Effects | None = None
    processes: Processes | None = None
    serve: Serve | None = None
    command: tuple[Command, ...] = ()
    maintain: Maintain = Maintain()
    health: Health = Health()


class Member(BaseModel):
    """A process of the tree: its name, what it runs, and every how many seconds if it is no lasting one.

    `shown` is the same for people, without passwords.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    arguments: tuple[str, ...]
    own: bool = False
    every: float | None = None

    @property
    def shown(self) -> str:
        """The command line, in which no URL has a password."""
        words = [shown(word) if "://" in word and urlsplit(word).scheme else word for word in self.arguments]
        return " ".join(words if self.own else ["onefold", *words])


def load(path: Path | None, env: Mapping[str, str]) -> Configuration:
    """Return the configuration of a file and of the environment, which goes before.

    Without a path it is `onefold.toml` in the current folder, if that is there. Raises `BadConfiguration` naming file
    and key.
    """
    document: dict[str, Any] = {}
    chosen = path or Path(FILE)
    if path is not None or chosen.exists():
        try:
            document = tomllib.loads(chosen.read_text("utf-8"))
        except OSError as error:
            raise BadConfiguration(
                f"{chosen}: cannot be read: {error.strerror}; name another with --file"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadConfiguration(f"{chosen}: expected TOML in UTF-8, found: {error}") from error
    found = from_environment(env)
    try:
        return Configuration.model_validate({**document, **found})
    except ValidationError as error:
        raise BadConfiguration("; ".join(_told(each, chosen, found) for each in error.errors())) from error


def from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the variables `ONEFOLD_UP_*` say, in the shape of the file.

    Lists are separated by spaces: `ONEFOLD_UP_CONSUME="payments=kafka://... other=amqp://..."`.
    """
    found: dict[str, Any] = {}
    for name in sorted(env):
        if not name.startswith(PREFIX) or not (value := env[name].strip()):
            continue
        match name.removeprefix(PREFIX):
            case "APP":
                found["app"] = value
            case "GRACE":
                found["grace"] = value
            case "PROJECTIONS" | "EFFECTS" | "PROCESSES" as part:
                found[part.lower()] = {"names": () if value == "*" else tuple(value.split())}
            case "CONSUME":
                found["consume"] = [{"consumer": key, "url": url} for key, url in _pairs(name, value)]
            case "RELAY":
                found["relay"] = [{"channel": key, "to": url} for key, url in _pairs(name, value)]
            case "SERVE":
                found["serve"] = _address(value)
            case "HEALTH":
                found["health"] = _address(value)
            case "MAINTAIN":
                found["maintain"] = {"every": value}
            case _:
                known = (
                    "APP, GRACE, PROJECTIONS, EFFECTS, PROCESSES, CONSUME, RELAY, SERVE, HEALTH and MAINTAIN"
                )
                raise BadConfiguration(f"{name}: expected {PREFIX} followed by one of {known}")
    return found


def members(configuration: Configuration) -> Sequence[Member]:
    """Return the processes that a configuration asks for; raises `BadConfiguration` where it asks for none."""
    app = () if configuration.app is None else ("--app", configuration.app)
    found: list[Member] = []

    def add(name: str, *arguments: str, processes: int = 1, **more: Any) -> None:
        for number in range(1, processes + 1):
            own = name if processes == 1 else f"{name}-{number}"
            found.append(Member(name=own, arguments=arguments, **more))

    if (part := configuration.projections) is not None:
        add("projections", "run", *part.names, *app, *_option("--metrics-port", part.metrics_port))
    for each in configuration.consume:
        options = (*_option("--lanes", each.lanes), *_option("--metrics-port", each.metrics_port))
        add(
            f"consume-{each.consumer}", "consume", each.url, "--consumer", each.consumer, *app, *options,
            processes=each.processes,
        )  # fmt: skip
    for relay in configuration.relay:
        add(
            f"relay-{relay.name or relay.channel}", "relay", relay.channel, "--to", relay.to, *app,
            *_option("--name", relay.name), processes=relay.processes,
        )  # fmt: skip
    if configuration.effects is not None:
        workers = _option("--workers", configuration.effects.workers)
        add("effects", "effects", *configuration.effects.names, *app, *workers)
    if configuration.processes is not None:
        add("processes", "process", *(configuration.processes.names or ("--all",)), *app)
    if (serve := configuration.serve) is not None:
        add("serve", "serve", "--host", serve.host, "--port", str(serve.port))
    for command in configuration.command:
        add(command.name, *command.run, own=True)
    if not found:
        raise BadConfiguration(
            f"expected something to run, found nothing: name parts in {FILE}, such as [projections], or in the "
            f"environment, such as {PREFIX}PROJECTIONS='*'"
        )
    if configuration.maintain.every:
        add("maintain", "maintain", every=configuration.maintain.every)
    _require_different(each.name for each in found)
    return found


def _option(name: str, value: object) -> tuple[str, ...]:
    return () if value is None else (name, str(value))


def _require_different(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadConfiguration(f"{name} stands twice; use processes = 2, or give one another name")
        seen.add(name)


def _pairs(name: str, value: str) -> list[tuple[str, str]]:
    pairs = [word.partition("=") for word in value.split()]
    for key, equals, url in pairs:
        if not (key and equals and url):
            raise BadConfiguration(
                f"{name}: expected NAME=URL, several separated by spaces, found a word without"
            )
    return [(key, url) for key, _, url in pairs]


def _address(value: str) -> dict[str, str]:
    host, colon, port = value.rpartition(":")
    return {"host": host, "port": port} if colon else {"port": value}


def _told(error: Any, path: Path, from_env: Mapping[str, Any]) -> str:
    where = [str(step) for step in error["loc"]]
    place = f"{PREFIX}{where[0].upper()}" if where and where[0] in from_env else str(path)
    # What was given may be a URL with a password.
    return f"{place}: {'.'.join(where)}: {error['msg']}"
