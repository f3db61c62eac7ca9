"""What `make setup` installs is what is locked, and what is locked is what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

Asked = dict[tuple[str, frozenset[str]], SpecifierSet]


@pytest.fixture
def project(pytestconfig: pytest.Config) -> dict[str, Any]:
    return tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text())


@pytest.fixture
def lock(pytestconfig: pytest.Config) -> dict[str, Any]:
    return tomllib.loads((pytestconfig.rootpath / "uv.lock").read_text())


@pytest.fixture
def requirements(pytestconfig: pytest.Config) -> list[Requirement]:
    lines = (pytestconfig.rootpath / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def locked(lock: dict[str, Any]) -> dict[str, str]:
    return {
        package["name"]: package["version"] for package in lock["package"] if package["name"] != "onefold"
    }


def asked(requirements: list[str]) -> Asked:
    parsed = [Requirement(text) for text in requirements]
    return {(canonicalize_name(one.name), frozenset(one.extras)): one.specifier for one in parsed}


def recorded(entries: list[dict[str, Any]]) -> Asked:
    return {
        (entry["name"], frozenset(entry.get("extras", []))): SpecifierSet(entry.get("specifier", ""))
        for entry in entries
    }


def test_what_setup_installs_is_what_is_locked(lock: dict[str, Any], requirements: list[Requirement]) -> None:
    pinned = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in requirements}
    assert pinned == locked(lock)


def test_the_lock_answers_to_the_project(lock: dict[str, Any], project: dict[str, Any]) -> None:
    (onefold,) = (package for package in lock["package"] if package["name"] == "onefold")
    metadata = onefold["metadata"]
    assert recorded([entry for entry in metadata["requires-dist"] if "marker" not in entry]) == asked(
        project["project"]["dependencies"]
    )
    extras = project["project"]["optional-dependencies"]
    assert set(metadata["provides-extras"]) == set(extras)
    for extra, requirements in extras.items():
        marked = [one for one in metadata["requires-dist"] if one.get("marker") == f"extra == '{extra}'"]
        assert recorded(marked) == asked(requirements), extra
    assert {group: recorded(entries) for group, entries in metadata["requires-dev"].items()} == {
        group: asked(requirements) for group, requirements in project["dependency-groups"].items()
    }
    assert lock["requires-python"] == project["project"]["requires-python"]


def test_the_extra_of_all_names_every_other_one(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    (every,) = (Requirement(text) for text in extras["all"])
    assert every.name == "onefold"
    assert every.extras == set(extras) - {"all"}


def test_the_lock_names_the_public_index_and_nothing_else(lock: dict[str, Any]) -> None:
    for package in lock["package"]:
        if package["name"] == "onefold":
            continue
        assert package["source"] == {"registry": "https://pypi.org/simple"}, package["name"]
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        for file in files:
            assert file["url"].startswith("https://files.pythonhosted.org/packages/"), package["name"]
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]), package["name"]


def test_the_installed_versions_are_the_locked_ones(requirements: list[Requirement]) -> None:
    from importlib.metadata import version

    here = [one for one in requirements if one.marker is None or one.marker.evaluate()]
    assert {one.name: version(one.name) for one in here} == {
        one.name: str(one.specifier).removeprefix("==") for one in here
    }
