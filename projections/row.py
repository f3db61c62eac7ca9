"""Rows of read models: frozen pydantic models that give a table its columns."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from ..domain.errors import DeclarationError

# What every table of PostgreSQL has already.
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_NAME_BYTES = 63
_set = object.__setattr__
_new = object.__new__


class Row(BaseModel):
    """A row of a read model; the fields are the columns.

        class OrderSummary(Row, key="order_id"):
            order_id: str
            paid: Decimal = Decimal(0)

    `key` names the field, or the fields joined by commas, that tell rows apart: the primary key. Supported as
    columns of their own are str, int, bool, float, Decimal, date, datetime, UUID, text enums and literals, each
    also optional; anything else that pydantic can write is kept as jsonb.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_fields: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        def __init_subclass__(cls, *, key: str = ..., **config: Any) -> None: ...

    else:

        def __init_subclass__(cls, **_: Any) -> None:
            super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(cls, *, key: str = "", **_: Any) -> None:
        if key:
            cls.key_fields = tuple(part.strip() for part in key.split(","))
        unknown = [name for name in cls.key_fields if name not in cls.model_fields]
        if unknown:
            raise DeclarationError(f"{cls.__name__}: key field {unknown[0]!r} is not a field of the row")
        taken = {"key_fields", "evolve"} & set(cls.model_fields)
        if taken:
            raise DeclarationError(
                f"{cls.__name__}: field {min(taken)!r} has a name that Row uses; rename it"
            )
        system = _SYSTEM_COLUMNS & set(cls.model_fields)
        if system:
            raise DeclarationError(
                f"{cls.__name__}: field {min(system)!r} has the name of a column that every table has; rename it"
            )
        columns: dict[str, str] = {}
        for name in cls.model_fields:
            other = columns.setdefault(_column_name(name), name)
            if other != name:
                raise DeclarationError(
                    f"{cls.__name__}: fields {other!r} and {name!r} are one column, because PostgreSQL keeps "
                    f"{_NAME_BYTES} bytes of a name; rename one of them"
                )
        if cls.__private_attributes__:
            raise DeclarationError(
                f"{cls.__name__}: {min(cls.__private_attributes__)!r} would not be kept in the table; "
                "make it a field without an underscore"
            )
        cached = [name for name, value in vars(cls).items() if isinstance(value, cached_property)]
        if cached:
            # Its value would stand among the fields of the row, and be copied to the next one.
            raise DeclarationError(f"{cls.__name__}: {cached[0]!r} is a cached property; make it a property")

    def evolve(self, **changes: Any) -> Self:
        """Return a row with these fields changed; as with `model_copy(update=...)` the values are not validated.

        A name that is no field raises TypeError. A value whose type does not fit its column is refused on writing.
        """
        fields = self.__dict__ | changes
        if len(fields) != len(self.__dict__):
            unknown = min(changes.keys() - self.__dict__.keys())
            raise TypeError(f"{type(self).__name__} has no field {unknown!r}")
        twin = _new(self.__class__)
        _set(twin, "__dict__", fields)
        return twin

    def __getattr__(self, name: str) -> Any:
        # evolve is called for every event, so it sets nothing but the fields; what pydantic keeps beside them
        # is the same for every row.
        if name in ("__pydantic_extra__", "__pydantic_private__"):
            return None
        if name == "__pydantic_fields_set__":
            return set(self.__dict__)
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")


def _column_name(field: str) -> str:
    return field.encode()[:_NAME_BYTES].decode(errors="ignore")
