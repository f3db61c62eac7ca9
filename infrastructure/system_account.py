"""The system account that the embedded server runs under."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ..domain.errors import OnefoldError

# Accounts made for this purpose, in the order of preference; the last is there on every system.
_NAMES = ("embedded_postgres", "postgres")
_LAST_RESORT = "nobody"

_DROP = """
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
os.execv(sys.argv[3], sys.argv[3:])
"""


class SystemAccountError(OnefoldError):
    """No account on this machine can run the embedded server where it was asked for."""


@dataclass(frozen=True, slots=True)
class SystemAccount:
    """An account and the words to put before a command so that it runs under it."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()

    def own(self, path: Path) -> None:
        """Give `path` to this account."""
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def choose(data: Path, folder: Path, program: Path) -> SystemAccount:
    """Return the account to run `program` under, with data in `folder`.

    An ordinary user runs the server as itself. PostgreSQL refuses root, so root hands over to the owner of `data` if
    there is any, else to an account for databases. Where that account cannot reach `program` or `folder` because a
    folder above them is closed, as /root is, it is given the one capability that passes closed folders: nothing on
    the machine has to be opened for it. Raises SystemAccountError where even that is impossible.
    """
    if os.geteuid() != 0:
        return SystemAccount(os.geteuid(), os.getegid())
    uid, gid = _owner(data) or _database_account()
    # Wide capabilities are tried last: the server should be able to do as little as possible.
    for capability in ("", "dac_read_search", "dac_override"):
        words = prefix(uid, gid, capability)
        if words and _reaches(words, folder, program):
            return SystemAccount(uid, gid, words)
    raise SystemAccountError(
        f"expected that the account with uid {uid} can run {program} in {folder}, found that it cannot reach them; "
        "set ONEFOLD_HOME to a folder outside root's own, install into one, or run as an ordinary user"
    )


def _owner(data: Path) -> tuple[int, int] | None:
    try:
        status = data.stat()
    except FileNotFoundError:
        return None
    return (status.st_uid, status.st_gid) if status.st_uid != 0 else None


def _database_account() -> tuple[int, int]:
    for name in _NAMES:
        found = _look_up(name)
        if found:
            return found
    useradd = shutil.which("useradd")
    if useradd:
        subprocess.run(
            [useradd, "--system", "--no-create-home", "--shell", "/bin/false", _NAMES[0]],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    found = _look_up(_NAMES[0]) or _look_up(_LAST_RESORT)
    if found is None:
        raise SystemAccountError(
            "PostgreSQL refuses to run as root: expected an account for it, found none of "
            f"{', '.join((*_NAMES, _LAST_RESORT))}; create one, for instance: useradd --system {_NAMES[0]}"
        )
    return found


def _look_up(name: str) -> tuple[int, int] | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return entry.pw_uid, entry.pw_gid


def prefix(uid: int, gid: int, capability: str) -> tuple[str, ...]:
    """Return the words before a command that drop root's rights but for one; none where the system cannot do that."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if capability:
            return ()
        # Without util-linux, Python drops the privileges itself and then becomes the command.
        return (sys.executable, "-I", "-S", "-c", _DROP, str(uid), str(gid))
    words = (setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups")
    if not capability:
        return (*words, "--inh-caps=-all")
    only = f"-all,+{capability}"
    # Without the secure bit, access(2) ignores capabilities, and PostgreSQL asks it about its own program.
    return (
        *words,
        "--securebits=+no_setuid_fixup",
        f"--bounding-set={only}",
        f"--inh-caps={only}",
        f"--ambient-caps={only}",
    )


def _reaches(words: tuple[str, ...], folder: Path, program: Path) -> bool:
    # Run twice removed: only what a second command may do is what the server will be allowed to.
    test = 'exec /bin/sh -c \'test -r "$0" && test -x "$0" && cd "$1"\' "$0" "$1"'
    result = subprocess.run(
        [*words, "/bin/sh", "-c", test, str(program), str(folder)],
        check=False,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    return result.returncode == 0
