"""Errors of the product, one class per state of the world, under one root."""

from __future__ import annotations


class OnefoldError(Exception):
    """Root of every error that Onefold raises."""


class DeclarationError(OnefoldError):
    """An event, aggregate, lifecycle or projection is declared in a way that cannot work."""


class IllegalTransition(OnefoldError):
    """A command is not possible in the present state of its aggregate.

    Attributes: `stream`, `command`, `state` and `allowed` (the states in which the command is possible).
    """

    def __init__(self, stream: str, command: str, state: str, allowed: tuple[str, ...]) -> None:
        self.stream = stream
        self.command = command
        self.state = state
        self.allowed = allowed
        possible = " or ".join(allowed) if allowed else "no state"
        super().__init__(f"cannot {command} {stream}: it is {state}; {command} is possible when {possible}")


class CommandRefused(OnefoldError):
    """A command breaks a rule of its aggregate other than its lifecycle, such as too little money."""


class UnstorableValue(OnefoldError, ValueError):
    """A value that no log can keep (NUL, lone surrogate, NaN, Infinity, naive instant), with its field."""

    def __init__(self, subject: str, field: str, reason: str) -> None:
        self.subject = subject
        self.field = field
        super().__init__(f"{subject}: field {field} {reason}; nothing was written")


class UnknownEventType(OnefoldError):
    """A stored event whose type, or whose schema version, no class is registered for."""

    def __init__(self, type_name: str, schema_version: int, stream: str, version: int, position: int) -> None:
        self.type_name = type_name
        self.schema_version = schema_version
        self.stream = stream
        self.version = version
        self.position = position
        super().__init__(
            f"no event class is registered for type {type_name!r} schema version {schema_version} "
            f"(stream {stream}, version {version}, position {position}); "
            "register the class, or an upcast from this type and schema version; if newer code wrote it, run that here"
        )


class UndecodableEvent(OnefoldError):
    """A stored event whose data does not fit its class, with the fields that do not fit."""

    def __init__(self, type_name: str, stream: str, version: int, position: int, reason: str) -> None:
        self.type_name = type_name
        self.stream = stream
        self.version = version
        self.position = position
        super().__init__(
            f"data of event {type_name!r} (stream {stream}, version {version}, position {position}) "
            f"does not fit its class: {reason}"
        )


class UndecodableData(OnefoldError, ValueError):
    """Data from outside that does not fit its event class, with the fields that do not fit."""

    def __init__(self, type_name: str, reason: str) -> None:
        self.type_name = type_name
        super().__init__(f"data of type {type_name!r} does not fit its class: {reason}")
