"""The reference names what there is: public names, settings, errors, tables and columns."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import onefold
from onefold import OnefoldError, Store, connect
from onefold.infrastructure.cli.program import app as program
from onefold.projections.shop import app as shop

from .blocks import ROOT, blocks

REFERENCE = ROOT / "docs" / "reference"
PRODUCT = ("domain", "projections", "infrastructure")


def page(name: str) -> str:
    return (REFERENCE / name).read_text("utf-8")


def named(text: str) -> set[str]:
    """The words that stand in code spans or code blocks of a page."""
    spans = re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
    return {word for span in spans for word in re.findall(r"\w+", span)}


def errors() -> set[type[OnefoldError]]:
    for part in PRODUCT:
        package = importlib.import_module(f"onefold.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"onefold.{part}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found: set[type[OnefoldError]] = set()
    waiting = [OnefoldError]
    while waiting:
        kind = waiting.pop()
        found.add(kind)
        waiting += kind.__subclasses__()
    return {kind for kind in found if kind.__module__.startswith("onefold.")}


def sources() -> Iterator[Path]:
    yield from (ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "__init__.py")
    for folder in (*PRODUCT, "tests"):
        yield from (ROOT / folder).rglob("*.py")


def test_every_public_name_is_in_the_reference() -> None:
    assert sorted(set(onefold.__all__) - named(page("python.md"))) == []


def test_every_method_of_the_store_is_in_the_reference() -> None:
    methods = {name for name in vars(Store) if not name.startswith("_")}
    assert sorted(methods - named(page("python.md"))) == []


def test_every_module_that_the_reference_names_has_what_it_says() -> None:
    rows = re.findall(r"^\| (.+?) \| (`onefold\..+?`) \|", page("python.md"), re.MULTILINE)
    assert len(rows) > 8
    for names, modules in rows:
        places = [importlib.import_module(module) for module in re.findall(r"[\w.]+", modules)]
        for name in re.findall(r"\w+", names):
            assert any(hasattr(place, name) for place in places), f"{name} is not in {modules}"


def test_every_error_is_in_the_reference() -> None:
    assert sorted({kind.__name__ for kind in errors()} - named(page("errors.md"))) == []


def test_every_error_is_in_the_module_that_the_reference_names() -> None:
    sections = page("errors.md").split("## Command line")[0].split("\n## ")[1:]
    assert len(sections) == 6
    for section in sections:
        (home,) = re.findall(r"^From `(onefold[\w.]+)`", section, re.MULTILINE)
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|([^|]*)\|", section, re.MULTILINE)
        assert rows
        for names, when in rows:
            other = re.search(r"\(`((?:domain|projections|infrastructure)[\w.]*)`\)", when)
            place = importlib.import_module(f"onefold.{other[1]}" if other else home)
            for name in re.findall(r"\w+", names):
                assert getattr(place, name).__module__.startswith("onefold."), name


def test_every_variable_that_the_code_reads_is_in_the_configuration() -> None:
    found = {
        name
        for source in sources()
        for name in re.findall(r"\bONEFOLD_[A-Z_]+\b", source.read_text("utf-8"))
        if source != Path(__file__)
    }
    assert sorted(found - named(page("configuration.md"))) == []


def test_every_command_is_in_the_reference() -> None:
    names = {command.name for command in program.registered_commands}
    groups = {group.name: group.typer_instance for group in program.registered_groups}
    text = page("cli.md")
    for name in names | set(groups):
        assert f"onefold {name}" in text, name
    for group, commands in groups.items():
        for command in commands.registered_commands:
            assert f"{group} {command.name}" in text, command.name


def test_every_table_column_trigger_and_function_is_in_the_reference(database_url: str) -> None:
    with connect(shop, database_url) as store:
        store.run()
        with store.pool.connection() as connection:
            found = connection.execute(
                """
                SELECT c.relname FROM pg_class c
                WHERE c.relkind IN ('p', 'r', 'v') AND c.relnamespace::regnamespace::text IN ('onefold', 'read')
                    AND NOT c.relispartition
                UNION
                SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                WHERE c.relkind IN ('p', 'r', 'v') AND c.relnamespace::regnamespace::text IN ('onefold', 'read')
                    AND a.attnum > 0 AND NOT a.attisdropped AND c.relname <> 'revenue_by_month_orders'
                UNION
                SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
                UNION
                SELECT proname FROM pg_proc WHERE pronamespace = 'onefold'::regnamespace
                """
            ).fetchall()
    assert sorted({name for (name,) in found} - named(page("database.md"))) == []


def test_the_statements_for_psql_run(database_url: str) -> None:
    (statements,) = (block.text for block in blocks(REFERENCE / "database.md") if block.language == "sql")
    with psycopg.connect(database_url) as connection:
        for statement in statements.split(";"):
            if statement.strip():
                connection.execute(statement.encode())


def test_the_settings_of_the_embedded_server_are_those_of_the_page() -> None:
    from onefold.infrastructure.cluster import SERVER_SETTINGS

    text = page("configuration.md").split("## The embedded server")[1]
    for name in re.findall(r"`(\w+)`", text):
        assert name in SERVER_SETTINGS or name in SERVER_SETTINGS.values(), name
    for name in ("max_connections", "shared_buffers", "max_wal_size"):
        assert f"| `{name}` | {SERVER_SETTINGS[name]} |" in text


@pytest.mark.parametrize("name", ["demo", "test", "bench"])
def test_the_targets_that_the_readme_names_are_in_the_makefile(name: str) -> None:
    assert f"make {name}" in (ROOT / "README.md").read_text("utf-8")
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
