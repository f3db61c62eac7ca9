"""The registry: from stable event names and schema versions to classes, and how old events are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from .errors import DeclarationError, UndecodableData, UndecodableEvent, UnknownEventType
from .event import Event, EventMeta
from .money import FROM_JSON

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""From the data of an old schema version to the data of the next; a pure function."""

Decode = Callable[[str | bytes], Event]
_set = object.__setattr__


class Registry:
    """Event classes by name, and the upcasts that lead old names and schema versions to them."""

    def __init__(self) -> None:
        self._classes: dict[str, type[Event]] = {}
        self._upcasts: dict[tuple[str, int], tuple[Upcast, str, int]] = {}
        self._decoders: dict[tuple[str, int], Decode] = {}

    def register(self, event_class: type[Event]) -> None:
        """Make `event_class` known under its name; raises `DeclarationError` if another class has it."""
        name = event_class.event_name
        known = self._classes.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            event_class.__module__,
            event_class.__qualname__,
        ):
            raise DeclarationError(
                f"event name {name!r} of {event_class.__module__}.{event_class.__qualname__} is taken by "
                f"{known.__module__}.{known.__qualname__}"
            )
        self._classes[name] = event_class
        self._decoders.clear()

    def upcast(
        self, name: str, version: int, *, to: str | None = None, to_version: int | None = None
    ) -> Callable[[Upcast], Upcast]:
        """Declare how data of `name` at schema `version` becomes data of `to` at `to_version`.

        Left out, `to` is the same name and `to_version` the next version (1 for a new name).
        """
        target = name if to is None else to
        if to_version is None:
            to_version = version + 1 if target == name else 1

        def declare(function: Upcast) -> Upcast:
            if (name, version) in self._upcasts:
                raise DeclarationError(f"a second upcast from {name!r} schema version {version}")
            self._upcasts[name, version] = (function, target, to_version)
            self._decoders.clear()
            return function

        return declare

    def knows(self, name: str) -> bool:
        """Tell whether a stored name leads to a class: its own, or one of an upcast."""
        return name in self._classes or any(source == name for source, _ in self._upcasts)

    def names_read_as(self, event_class: type[Event]) -> frozenset[str]:
        """Return every stored name that is read as `event_class`: its own and those upcast to it."""
        names = {event_class.event_name}
        grown = True
        while grown:
            more = {source for (source, _), (_, target, _) in self._upcasts.items() if target in names}
            grown = not more <= names
            names |= more
        return frozenset(names)

    def decoder(self, name: str, schema_version: int) -> Decode | None:
        """Return the function from stored JSON to the event, or None if no class is known."""
        decode = self._decoders.get((name, schema_version))
        if decode is None:
            decode = self._build(name, schema_version)
            if decode is not None:
                self._decoders[name, schema_version] = decode
        return decode

    def decode(self, name: str, schema_version: int, data: str | bytes | None, meta: EventMeta) -> Event:
        """Return the stored event, upcast and bound to `meta`.

        Raises `UnknownEventType` or `UndecodableEvent`, both naming type, stream, version and position.
        """
        decode = self._decoders.get((name, schema_version)) or self.decoder(name, schema_version)
        if decode is None:
            raise UnknownEventType(name, schema_version, meta.stream, meta.version, meta.position)
        if data is None:
            reason = "it is not JSON (encrypted or compressed by another mapper)"
            raise UndecodableEvent(name, meta.stream, meta.version, meta.position, reason)
        try:
            event = decode(data)
        except ValidationError as error:
            raise UndecodableEvent(
                name, meta.stream, meta.version, meta.position, _fields_of(error)
            ) from error
        except Exception as error:
            reason = f"an upcast failed with {type(error).__name__}: {error}"
            raise UndecodableEvent(name, meta.stream, meta.version, meta.position, reason) from error
        _set(event, "_meta", meta)
        return event

    def reader(self, name: str, schema_version: int) -> Callable[[Any], Event] | None:
        """Return the function from data that is parsed already to the event, or None if no class is known.

        Raises `UndecodableData` naming the fields that do not fit.
        """
        found = self._chain(name, schema_version)
        if found is None:
            return None
        chain, event_class = found
        validate = event_class.__pydantic_validator__.validate_python

        def read(data: Any) -> Event:
            try:
                for function in chain:
                    data = function(data)
                event: Event = validate(data, context=FROM_JSON)
            except ValidationError as error:
                raise UndecodableData(name, _fields_of(error)) from error
            return event

        return read

    def _build(self, name: str, schema_version: int) -> Decode | None:
        found = self._chain(name, schema_version)
        if found is None:
            return None
        chain, event_class = found
        validate: Decode = event_class.__pydantic_validator__.validate_json
        if not chain:
            return validate

        def upcast_and_validate(data: str | bytes) -> Event:
            values = from_json(data)
            for function in chain:
                values = function(values)
            return validate(to_json(values))

        return upcast_and_validate

    def _chain(self, name: str, schema_version: int) -> tuple[list[Upcast], type[Event]] | None:
        """Return the upcasts from a stored name and schema version, and the class that they lead to."""
        chain: list[Upcast] = []
        at = (name, schema_version)
        while at in self._upcasts and len(chain) <= len(self._upcasts):
            function, target, version = self._upcasts[at]
            chain.append(function)
            at = (target, version)
        event_class = self._classes.get(at[0])
        if event_class is None or event_class.schema_version != at[1]:
            return None
        return chain, event_class


def _fields_of(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in detail['loc']) or 'data'}: {detail['msg']}"
        for detail in error.errors(include_url=False, include_input=False, include_context=False)
    )


registry = Registry()
"""The registry that event classes join when they name none of their own."""
