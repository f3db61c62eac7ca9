"""Every module of the product has one name, `onefold…`: a second copy would have classes of its own."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import onefold


def test_no_module_of_the_product_is_loaded_under_two_names(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath
    for folder in ("domain", "projections", "infrastructure"):
        package = importlib.import_module(f"onefold.{folder}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(".__main__"):
                importlib.import_module(found.name)
    names: dict[Path, list[str]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not Path(file).is_relative_to(root):
            continue
        path = Path(file).relative_to(root)
        if path.parts[0] in ("domain", "projections", "infrastructure", "__init__.py", "testing.py"):
            names.setdefault(path, []).append(name)
    expected = {
        path: [
            ".".join(
                ["onefold", *(path.parent if path.name == "__init__.py" else path.with_suffix("")).parts]
            )
        ]
        for path in names
    }
    assert names == expected
    assert Path("__init__.py") in names


def test_the_package_is_the_checkout(pytestconfig: pytest.Config) -> None:
    assert Path(str(onefold.__file__)).resolve() == (pytestconfig.rootpath / "__init__.py").resolve()


@pytest.mark.parametrize("name", ["domain", "projections", "infrastructure"])
def test_the_layers_are_no_packages_of_their_own_outside_the_checkout(tmp_path: Path, name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-I", "-c", f"import {name}"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert f"No module named '{name}'" in result.stderr
