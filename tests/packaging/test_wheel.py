"""The wheel holds exactly the product's files, adds nothing but `onefold`, and works where only it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

PRODUCT = ("domain", "projections", "infrastructure")

# Imports every module of the installed package but the scripts, and prints where each was found.
IMPORT_ALL = """
import importlib, json, pkgutil, onefold
names = ["onefold", *(found.name for found in pkgutil.walk_packages(onefold.__path__, "onefold."))]
names = [name for name in names if not name.endswith(".__main__")]
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""


def product_files(root: Path) -> set[str]:
    """Every file of the product, as a path inside the package; what tools leave behind is not one."""
    files = {path for folder in PRODUCT for path in (root / folder).rglob("*") if path.is_file()}
    kept = {path for path in files if "__pycache__" not in path.parts and not path.name.startswith(".")}
    return {"__init__.py", "py.typed", "testing.py", *(path.relative_to(root).as_posix() for path in kept)}


@pytest.fixture(scope="module")
def tree(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout under another name: a build leaves files beside its sources."""
    root = pytestconfig.rootpath
    copy = tmp_path_factory.mktemp("build") / "any name"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(root, copy, ignore=hidden)
    return copy


def build(tree: Path, kind: str, out: Path) -> Path:
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(tree)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=out.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, "wheel", tmp_path_factory.mktemp("wheel") / "out")


def files_in(wheel: Path) -> set[PurePosixPath]:
    with zipfile.ZipFile(wheel) as archive:
        return {PurePosixPath(name) for name in archive.namelist()}


def test_the_wheel_holds_exactly_the_products_files(wheel: Path, tree: Path) -> None:
    found = {file.relative_to("onefold").as_posix() for file in files_in(wheel) if file.parts[0] == "onefold"}
    assert found == product_files(tree)


def test_the_wheel_adds_nothing_but_onefold(wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert {file.parts[0] for file in files_in(wheel)} == {"onefold", f"onefold-{version}.dist-info"}


def test_the_packages_are_listed_in_order_and_without_one_that_is_gone(tree: Path) -> None:
    listed = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {PurePosixPath(file).parent for file in product_files(tree) if file.endswith("__init__.py")}
    assert listed == sorted(".".join(["onefold", *folder.parts]) for folder in folders)


def test_the_wheel_carries_the_licence_the_command_and_the_runtime_requirements(
    wheel: Path, tree: Path
) -> None:
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        (metadata_name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        folder = metadata_name.removesuffix("METADATA")
        metadata = archive.read(metadata_name).decode()
        assert archive.read(f"{folder}licenses/LICENSE") == (tree / "LICENSE").read_bytes()
        assert (
            "onefold = onefold.infrastructure.cli:main" in archive.read(f"{folder}entry_points.txt").decode()
        )
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    assert len([line for line in required if "; extra ==" not in line]) == len(project["dependencies"])
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_an_installed_wheel_works_without_the_checkout(wheel: Path, tree: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", str(site), str(wheel)], check=True, capture_output=True)
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"onefold", "bin"}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert result.returncode == 0, result.stderr
    places: dict[str, str] = json.loads(result.stdout)
    assert all(Path(place).is_relative_to(site / "onefold") for place in places.values())
    modules = {
        file for file in product_files(tree) if file.endswith(".py") and not file.endswith("__main__.py")
    }
    assert {Path(place).relative_to(site / "onefold").as_posix() for place in places.values()} == modules


def test_the_source_archive_builds_the_same_wheel(tree: Path, wheel: Path, tmp_path: Path) -> None:
    archive = build(tree, "sdist", tmp_path / "sdist")
    subprocess.run(
        [sys.executable, "-m", "tarfile", "-e", str(archive), str(tmp_path / "unpacked")], check=True
    )
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert files_in(build(unpacked, "wheel", tmp_path / "again")) == files_in(wheel)
