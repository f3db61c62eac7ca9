"""Settings are read from the environment, and a wrong one is refused before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.domain.errors import OnefoldError
from onefold.infrastructure.settings import Settings, SettingsError


def test_nothing_set_means_the_embedded_server_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({}) == Settings(database_url=None, home=tmp_path / ".onefold")
    assert Settings() == Settings.from_env({"ONEFOLD_DATABASE_URL": " ", "ONEFOLD_HOME": ""})


def test_home_is_absolute_and_knows_the_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    assert Settings.from_env({"ONEFOLD_HOME": "data/here"}).home == tmp_path / "data/here"
    assert Settings.from_env({"ONEFOLD_HOME": "~/shop"}).home == Path("/home/ada/shop")


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_DATABASE_URL", "postgresql://ada@db.example/shop")
    assert Settings.from_env().database_url == "postgresql://ada@db.example/shop"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@db.example:5433/shop?sslmode=require",
        "postgres://db.example/shop",
        "postgresql://onefold@/onefold?host=%2Fvar%2Frun%2Fa%20b&port=5432",
        "postgresql://one.example:5432,two.example:5433/shop?target_session_attrs=read-write",
        "host=db.example dbname=shop options='-c search_path=a://b'",
    ],
)
def test_what_libpq_reads_is_accepted(url: str) -> None:
    assert Settings.from_env({"ONEFOLD_DATABASE_URL": url}).database_url == url


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("mysql://ada:secret@db.example/shop", "its scheme is 'mysql'"),
        ("ada:secret@db.example", "libpq cannot read"),
        ("postgresql://ada:secret%zz@db.example/shop", "libpq cannot read"),
        ("postgresql://ada:secret@db.example/shop?colour=red", "libpq cannot read"),
        ("postgresql://ada:secret\udcff@db.example/shop", "is not UTF-8"),
        ("postgresql://ada:secret@db.example:port/shop", "its port is 'port'"),
        ("postgresql://ada:secret@db.example:70000/shop", "its port is '70000'"),
    ],
)
def test_a_malformed_url_is_refused_without_showing_the_password(url: str, found: str) -> None:
    with pytest.raises(SettingsError, match=r"must look like postgresql://") as raised:
        Settings.from_env({"ONEFOLD_DATABASE_URL": url})
    assert found in str(raised.value)
    assert "secret" not in str(raised.value)
    assert isinstance(raised.value, OnefoldError)


def test_the_password_is_not_in_the_representation() -> None:
    settings = Settings.from_env({"ONEFOLD_DATABASE_URL": "postgresql://ada:secret@db.example/shop"})
    assert "secret" not in repr(settings)


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(SettingsError, match="is a file"):
        Settings.from_env({"ONEFOLD_HOME": str(tmp_path / "home")})


@pytest.mark.parametrize(
    ("home", "found"),
    [("~nobody-of-that-name/shop", "home directory"), ("d" * 300, "name too long")],
)
def test_a_home_that_no_folder_can_have_is_refused(home: str, found: str) -> None:
    with pytest.raises(SettingsError, match=f"(?i)must name a folder.*{found}"):
        Settings.from_env({"ONEFOLD_HOME": home})
