"""Finding the user's application: `module:name`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from ...domain.errors import OnefoldError
from ...projections.app import App

SHOP = "onefold.projections.shop:app"
"""The bundled application."""


class AppNotFound(OnefoldError):
    """What --app names is not there, cannot be imported, or is not an application."""


def load_app(reference: str) -> App:
    """Return the application that `module:name` names; modules in the current folder are found too.

    Raises `AppNotFound` saying what is wrong.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise AppNotFound(f"expected an application as MODULE:NAME, found {reference!r}; for example {SHOP}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found: Any = _import(module_name, reference)
    for part in name.split("."):
        if not hasattr(found, part):
            raise AppNotFound(
                f"application {reference}: module {module_name} has nothing named {name}; {_known(module_name)}"
            )
        found = getattr(found, part)
    if not isinstance(found, App):
        raise AppNotFound(
            f"application {reference}: expected an onefold.App, found {type(found).__name__}; "
            f"{_known(module_name)}"
        )
    return found


def _import(module_name: str, reference: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise AppNotFound(
                f"application {reference}: there is no module {error.name}; "
                "name one that is installed, or one in the current folder"
            ) from error
        raise _broken(reference, module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(reference, module_name, error) from error


def _broken(reference: str, module_name: str, error: BaseException) -> AppNotFound:
    text = " ".join(str(error).split())
    return AppNotFound(
        f"application {reference}: importing {module_name} failed with {type(error).__name__}: {text}; "
        "--debug shows where"
    )


def _known(module_name: str) -> str:
    values = vars(sys.modules[module_name])
    names = sorted(name for name, value in values.items() if isinstance(value, App))
    if not names:
        return "it has no application; make one with app = onefold.App(...)"
    return f"its applications are {', '.join(names)}"
