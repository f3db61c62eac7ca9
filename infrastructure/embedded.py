"""The embedded server: a private PostgreSQL, started on demand and shared by all processes of one home."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from ..domain.errors import OnefoldError
from . import cluster, postmaster, system_account
from .cluster import EmbeddedServerError
from .connection import CONNECT_SECONDS
from .settings import Settings

DATABASE = "onefold"
PORT = 5432

START_SECONDS = 300.0
LEFTOVER_SECONDS = 30.0
WATCH_SECONDS = 1.0
WATCH_AGAIN_SECONDS = 30.0
_POLL_SECONDS = 0.005
# The shortest limit of the systems we run on: macOS takes 103 bytes in the path of a socket, Linux 107.
_SOCKET_PATH_BYTES = 103
_STILL_IN_USE = "is still in use"

log = logging.getLogger("onefold.server")


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known about an embedded server.

    `url` is None unless it runs, and `pid` unless it runs, starts or stops; `version` is that of the running server
    (`18.6`), else that of its data (`18`), or None before the first start.
    """

    running: bool
    pid: int | None
    url: str | None
    data_directory: Path
    version: str | None


class EmbeddedServer:
    """A private PostgreSQL with its data in `home`/postgres, reached through a Unix socket alone.

    Any number of processes and threads may use one home at once: the first to hold the server starts it, the last to
    leave stops it, also when holders are killed. `settings` are server settings beyond the durable defaults; they
    take effect at the next start. Runs as an ordinary user or as root, on Linux and macOS. Raises EmbeddedServerError
    for a `home` whose path has a line break or is not UTF-8.
    """

    def __init__(self, home: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.home = _usable(Path(home).absolute())
        self.directory = self.home / "postgres"
        self.data = self.directory / postmaster.DATA
        self._settings = dict(settings or {})

    @contextmanager
    def hold(self) -> Iterator[str]:
        """Yield the URL of the database `onefold` on the running server, and keep the server up until the exit.

        A server that is killed meanwhile is started again within seconds, under the same URL; one that is stopped,
        as by `stop`, stays stopped.
        Raises EmbeddedServerError, with the end of the server's log, if the server does not start.
        """
        self._make_directory()
        holder = self._open(postmaster.HOLDERS)
        try:
            with self._gate():
                fcntl.flock(holder, fcntl.LOCK_SH)
                url = self._url(self._ensure_running())
            with self._watched():
                yield url
        finally:
            self._leave(holder)

    def start(self) -> str:
        """Start the server unless it runs, and keep it until `stop`; return the URL of the database `onefold`."""
        self._make_directory()
        # Held meanwhile, so that a keeper stops the server if this process is killed before the mark is written.
        with self._gate(), self._opened(postmaster.HOLDERS) as holder:
            fcntl.flock(holder, fcntl.LOCK_SH)
            server = self._ensure_running()
            with self._opened(postmaster.KEPT) as mark:
                os.ftruncate(mark, 0)
                os.write(mark, server.mark.encode())
            return self._url(server)

    def stop(self) -> bool:
        """Stop the server, also under those who hold it; return False if it did not run.

        Clients are disconnected; what they had not committed is rolled back. Raises EmbeddedServerError if the
        server does not end within 70 seconds.
        """
        if not self.directory.is_dir():
            return False
        with self._gate():
            return self._stop()

    def status(self) -> ServerStatus:
        """Tell whether the server runs, and where; nothing is started or changed."""
        server = self._find()
        if server is None or not server.ready:
            pid = server.pid if server else None
            return ServerStatus(False, pid, None, self.data, cluster.version(self.data))
        url = self._url(server)
        try:
            with psycopg.connect(url, connect_timeout=CONNECT_SECONDS) as connection:
                number = connection.info.server_version
        except psycopg.OperationalError:
            return ServerStatus(True, server.pid, url, self.data, cluster.version(self.data))
        return ServerStatus(True, server.pid, url, self.data, f"{number // 10000}.{number % 10000}")

    def _make_directory(self) -> None:
        try:
            if self.directory.is_dir():
                return
            if not self.home.exists():
                self.home.mkdir(parents=True, exist_ok=True)
                (self.home / ".gitignore").write_text("*\n")
            # Root's server runs under another account, which must be able to pass.
            self.directory.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)
        except OSError as error:
            raise EmbeddedServerError(
                f"expected to create {self.directory}, found: {error.strerror}; set ONEFOLD_HOME to a folder that "
                "you may write to"
            ) from error

    def _open(self, name: str) -> int:
        path = self.directory / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise self._not_yours() from error
        except OSError as error:
            raise EmbeddedServerError(
                f"expected to open the file {path} for writing, found: {error.strerror}; mend that, or set "
                "ONEFOLD_HOME to a folder that you may write to"
            ) from error
        if os.geteuid() == 0:
            # In a user's home, root leaves nothing that the user cannot open.
            status = self.directory.stat()
            os.fchown(descriptor, status.st_uid, status.st_gid)
        return descriptor

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        descriptor = self._open(name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _not_yours(self) -> EmbeddedServerError:
        return EmbeddedServerError(
            f"expected {self.directory} to be a folder of uid {os.geteuid()}, which runs this process, found one of "
            f"uid {self.directory.stat().st_uid}; set ONEFOLD_HOME to a folder of your own, or run as its owner"
        )

    def _find(self, *, gated: bool = False) -> postmaster.Postmaster | None:
        try:
            return postmaster.find_launched(self.directory) if gated else postmaster.find(self.data)
        except PermissionError as error:
            raise self._not_yours() from error

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """Be the only one who starts or stops the server of this home."""
        with self._opened(postmaster.GATE) as gate:
            deadline = time.monotonic() + START_SECONDS + 30
            while not postmaster.take(gate, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"expected the lock {self.directory / postmaster.GATE} within {START_SECONDS + 30:.0f} "
                        "seconds, found it held by a process that starts or stops the server; end that process"
                    )
                time.sleep(_POLL_SECONDS)
            yield

    @contextmanager
    def _watched(self) -> Iterator[None]:
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,), name="onefold server", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, over: threading.Event) -> None:
        pause = WATCH_SECONDS
        while not over.wait(pause):
            pause = WATCH_SECONDS
            if not postmaster.killed(self.data):
                continue
            try:
                with self._gate():
                    # Another holder may have been first.
                    if postmaster.killed(self.data):
                        server = self._ensure_running()
                        log.warning(
                            "the embedded server was killed; started it again, with pid %d", server.pid
                        )
            except (OnefoldError, OSError) as error:
                pause = WATCH_AGAIN_SECONDS
                log.warning(
                    "the embedded server was killed, and starting it again failed; next try in %.0f seconds: %s",
                    pause,
                    error,
                )

    def _leave(self, holder: int) -> None:
        if not self.directory.is_dir():
            # Removed under our feet: its server notices within a minute, and ends.
            os.close(holder)
            return
        with self._gate(), self._opened(postmaster.HOLDERS) as holders:
            # Closing, not unlocking: a forked child that inherited the descriptor goes on holding.
            os.close(holder)
            if postmaster.unheld(holders):
                server = self._find(gated=True)
                if server is not None and not postmaster.kept(self.directory, server):
                    self._stop()

    def _stop(self) -> bool:
        (self.directory / postmaster.KEPT).unlink(missing_ok=True)
        try:
            return postmaster.stop(self.data)
        except TimeoutError as error:
            raise EmbeddedServerError(str(error)) from error
        except PermissionError as error:
            raise EmbeddedServerError(
                f"expected to stop the server on {self.data}, found that it belongs to another account; "
                "stop it as its owner"
            ) from error

    def _ensure_running(self) -> postmaster.Postmaster:
        server = self._find(gated=True)
        if server is not None:
            # It may be on its way up or down, left there by a process that was killed.
            server = self._await_ready(server.pid)
        if server is None or not postmaster.kept(self.directory, server):
            # Before the start: whoever starts may be killed at any moment.
            self._ensure_keeper()
        if server is None:
            cluster.prepare(self.data, sync=self._settings.get("fsync") != "off")
            server = self._launch()
        self._ensure_database(server)
        return server

    def _launch(self) -> postmaster.Postmaster:
        if postmaster.stale(self.data):
            # The pid in the file is another process's by now.
            (self.data / "postmaster.pid").unlink()
        runner = system_account.choose(self.data, self.directory, cluster.programs() / "postgres")
        directory = self._make_socket_directory(runner)
        for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
            (directory / name).unlink(missing_ok=True)
        quoted = '"' + str(directory).replace('"', '""') + '"'
        sockets = {"port": str(PORT), "unix_socket_directories": quoted}
        cluster.configure(self.data, runner, {**sockets, **self._settings})
        messages = cluster.log(self.data)
        deadline = time.monotonic() + LEFTOVER_SECONDS
        launch = self.directory / postmaster.LAUNCH
        while True:
            launch.touch()
            pid = self._run(runner, messages)
            try:
                server = self._await_ready(pid)
                launch.unlink(missing_ok=True)
            except BaseException:
                # It may have no pid file yet, without which nobody else finds it.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
                raise
            if server is not None:
                return server
            tail = cluster.log_tail(self.data)
            if _STILL_IN_USE not in tail or time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"expected the server on {self.data} to start, found that it ended. {tail}"
                )
            # Processes of a server that was killed are still ending.
            time.sleep(0.1)

    def _run(self, runner: system_account.SystemAccount, log: Path) -> int:
        """Start the server as nobody's child, so that nobody has to wait for it; return its pid."""
        script = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
        command = [
            *runner.prefix,
            "/bin/sh",
            "-c",
            script,
            "sh",
            str(log),
            str(cluster.programs() / "postgres"),
        ]
        result = subprocess.run(
            [*command, "-D", str(self.data)],
            check=True,
            cwd="/",
            env=cluster.environment(),
            umask=0o077,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return int(result.stdout)

    def _await_ready(self, pid: int) -> postmaster.Postmaster | None:
        """Wait until the server with `pid` takes connections; return None if it ended."""
        deadline = time.monotonic() + START_SECONDS
        while postmaster.alive(pid):
            server = self._find()
            if server is not None and server.pid == pid and server.ready:
                return server
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"expected the server with pid {pid} on {self.data} to become ready within {START_SECONDS:.0f} "
                    f"seconds, found it still starting. {cluster.log_tail(self.data)}"
                )
            time.sleep(_POLL_SECONDS)
        return None

    def _ensure_database(self, server: postmaster.Postmaster) -> None:
        try:
            url = self._url(server, "postgres")
            with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS) as connection:
                if (
                    connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
                    is None
                ):
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
                    # The role has the name of a schema of ours, where a user's own tables must not go.
                    connection.execute("ALTER ROLE CURRENT_USER SET search_path TO public")
        except psycopg.Error as error:
            raise EmbeddedServerError(
                f"expected to reach the server with pid {server.pid} on {self.data}, found: {error}. "
                f"{cluster.log_tail(self.data)}"
            ) from error

    def _ensure_keeper(self) -> None:
        with self._opened(postmaster.KEEPER) as duty:
            if not postmaster.take(duty, fcntl.LOCK_EX):
                return
        # Through a shell that ends at once, so that the keeper is nobody's child to wait for.
        script = '"$@" </dev/null >/dev/null 2>&1 &'
        subprocess.run(
            ["/bin/sh", "-c", script, "sh", sys.executable, "-I", postmaster.__file__, str(self.directory)],
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _url(self, server: postmaster.Postmaster, database: str = DATABASE) -> str:
        host = quote(str(server.socket_directory), safe="")
        return f"postgresql://{cluster.USER}@/{database}?host={host}&port={PORT}"

    def _socket_directory(self) -> Path:
        inside = self.directory / "run"
        # libpq takes a comma in a host for the start of the next host.
        if len(os.fsencode(inside / f".s.PGSQL.{PORT}")) <= _SOCKET_PATH_BYTES and "," not in str(inside):
            return inside
        digest = hashlib.sha256(os.fsencode(self.data.resolve())).hexdigest()[:16]
        name = f"onefold-{os.geteuid()}-{digest}"
        outside = Path(tempfile.gettempdir()).absolute() / name
        if len(os.fsencode(outside / f".s.PGSQL.{PORT}")) <= _SOCKET_PATH_BYTES:
            return outside
        return Path("/tmp") / name  # noqa: S108 - made with mode 0700, and checked

    def _make_socket_directory(self, runner: system_account.SystemAccount) -> Path:
        directory = self._socket_directory()
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            runner.own(directory)
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != runner.uid or status.st_mode & 0o077:
            raise EmbeddedServerError(
                f"expected {directory} to be a folder of uid {runner.uid} that is closed to others, found uid "
                f"{status.st_uid} with mode {stat.filemode(status.st_mode)}; remove it"
            )
        return directory


def _usable(home: Path) -> Path:
    """Return `home` if PostgreSQL's own files, which are UTF-8 and read by lines, can name it."""
    try:
        str(home).encode()
    except UnicodeEncodeError:
        problem = "which is not UTF-8"
    else:
        if len(str(home).splitlines()) == 1:
            return home
        problem = "which has a line break"
    raise EmbeddedServerError(
        f"expected a home for the embedded server that PostgreSQL can name, found {str(home)!r}, {problem}; "
        "set ONEFOLD_HOME to another folder"
    )


@contextmanager
def database_url(settings: Settings) -> Iterator[str]:
    """Yield the connection string to use: that of `settings`, else that of the embedded server, held until the exit."""
    if settings.database_url is not None:
        yield settings.database_url
    else:
        with EmbeddedServer(settings.home).hold() as url:
            yield url
