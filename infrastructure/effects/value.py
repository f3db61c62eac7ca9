"""Values as the tasks of effects keep them: JSON that PostgreSQL holds."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from ...domain.errors import UnstorableValue
from ...domain.event import _flaws


def as_json(owner: str, name: str, value: Any) -> str:
    """Return a value as JSON; raises `UnstorableValue`, with the place in it, where it cannot be kept unchanged.

    `owner` and `name` say whose value it is, and what it is called.
    """
    try:
        plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        text = to_json(plain, inf_nan_mode="constants").decode()
        # Python reads no number of more than 4300 digits.
        found = json.loads(text, parse_float=Decimal)
    except (PydanticSerializationError, ValueError) as error:
        raise UnstorableValue(owner, name, f"cannot be written as JSON ({error})") from error
    for path, reason in _flaws(name, found):
        raise UnstorableValue(owner, path, reason)
    return text
