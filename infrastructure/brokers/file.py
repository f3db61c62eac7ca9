"""Files of messages: one CloudEvent as JSON a line (JSONL), in a file, a compressed file, a pipe or standard input."""

from __future__ import annotations

import os
import select
import stat
import time
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote

from .options import Options
from .port import BrokerLost, BrokerMisconfigured, Delivery, MissingFile, Outgoing, Refusals
from .refusing import screened

STRUCTURED: Final = "application/cloudevents+json"
LINE: Final = 64 * 2**20
"""How many bytes a line may have."""
_HEADERS: Final = {"content-type": STRUCTURED}
_CHUNK: Final = 2**16
_INFLATED: Final = 2**20
_MARK: Final = b"\xef\xbb\xbf"
_FORM: Final = "file:/path/to/messages.jsonl or file:-"


class FileSubscription:
    """Reads a file of messages from its start. A line that is no message is delivered as it is; blank ones are not.

    A file keeps no account of what was acknowledged: who reads it again gets everything again, and the consumer's
    ledger makes that harmless. A file that breaks off in the middle of compressed data, or has a line of more than
    `LINE` bytes, raises `BrokerMisconfigured` after what comes before was delivered.
    """

    lease: float | None = None
    joined = True

    def __init__(self, path: str) -> None:
        self._name = "standard input" if path == "-" else Path(path).name
        self._owned = path != "-"
        try:
            # A pipe is opened whether or not somebody writes to it yet.
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if self._owned else 0
            mode = os.fstat(self._file).st_mode
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing(path, error.strerror or str(error)) from error
        except OSError as error:
            raise _unusable(path, "read", error.strerror or str(error)) from error
        if stat.S_ISDIR(mode):
            os.close(self._file)
            raise _missing(path, "a folder")
        self._waits = not stat.S_ISREG(mode)
        self._lines = _Lines(path.endswith(".gz"))
        self._number = 0
        self._open = True
        self._held: set[int] = set()
        self._returned: list[tuple[float, int, Delivery]] = []

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` lines; see `Subscription`."""
        if not self._open:
            raise BrokerLost(f"expected {self._name} to be open, found it closed; subscribe again")
        if not limit:
            time.sleep(timeout)
            return []
        until = time.monotonic() + timeout
        taken = self._again(limit)
        while len(taken) < limit:
            if self._lines.ready:
                self._number += 1
                line = self._lines.ready.popleft()
                if self._number == 1:
                    line = line.removeprefix(_MARK)
                if line and not line.isspace():
                    place = f"{self._name}:{self._number}"
                    taken.append(Delivery(line, _HEADERS, place, handle=self._number))
            elif self._lines.complete or not self._fill(0.0 if taken else until - time.monotonic()):
                break
        if not taken and self._lines.flaw:
            raise BrokerMisconfigured(
                f"{self._name}:{self._number + 1}: {self._lines.flaw}; repair the file and read it again: "
                "what was done is not done twice"
            )
        if not taken and self._lines.complete and self._returned:
            due, rest = min(self._returned)[0] - time.monotonic(), until - time.monotonic()
            time.sleep(max(0.0, min(due, rest)))
            taken = self._again(limit)
        self._held.update(delivery.handle for delivery in taken)
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Forget these: a file keeps no account."""
        self._held.difference_update(delivery.handle for delivery in deliveries)

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Deliver these again after `delay` seconds, as long as this subscription is open."""
        due = time.monotonic() + delay
        for delivery in deliveries:
            if delivery.handle in self._held:
                self._held.remove(delivery.handle)
                self._returned.append((due, delivery.handle, delivery))

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: a file has no leases."""

    def backlog(self) -> int | None:
        """Return None: the lines that are left would have to be read."""
        return None

    def retention(self) -> float | None:
        """Return None: how long a file is kept cannot be asked."""
        return None

    @property
    def ended(self) -> bool:
        """Whether everything was delivered."""
        return self._lines.complete and not (self._lines.ready or self._lines.flaw or self._returned)

    def close(self) -> None:
        """Close the file; standard input is left open."""
        if self._open and self._owned:
            os.close(self._file)
        self._open = False

    def _again(self, limit: int) -> list[Delivery]:
        """Take what was given back and is due, in the order of the file."""
        if not self._returned:
            return []
        now = time.monotonic()
        due = [entry for entry in sorted(self._returned, key=lambda entry: entry[1]) if entry[0] <= now][
            :limit
        ]
        for entry in due:
            self._returned.remove(entry)
        return [delivery for _, _, delivery in due]

    def _fill(self, timeout: float) -> bool:
        """Read on; return whether anything came within `timeout` seconds."""
        if self._lines.packed:
            self._lines.unpack()
            return True
        if self._waits and not select.select([self._file], [], [], max(0.0, timeout))[0]:
            return False
        try:
            self._lines.feed(os.read(self._file, _CHUNK))
        except BlockingIOError:
            return False
        except OSError as error:
            raise BrokerLost(
                f"expected to read on in {self._name}, found: {error}; check the disk"
            ) from error
        return True


class _Lines:
    """Lines out of chunks of bytes, without their ends; at most `LINE` bytes are kept."""

    def __init__(self, compressed: bool) -> None:
        self.ready: deque[bytes] = deque()
        self.complete = False
        self.flaw = ""
        self.packed = b""
        self._compressed = compressed
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._between = False
        self._part: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes, none at the end, once nothing is packed any more."""
        if not chunk:
            self._finish()
        elif self._compressed:
            # A file may be several compressed ones, one after the other, and be filled up with zeros.
            self.packed = chunk.lstrip(b"\0") if self._between else chunk
            if self.packed:
                self.unpack()
        else:
            self._split(chunk)

    def unpack(self) -> None:
        """Go on with what is packed, by as much as `_INFLATED` bytes: few may hold many."""
        self._between = False
        try:
            self._split(self._inflate.decompress(self.packed, _INFLATED))
        except zlib.error as error:
            self._end(f"expected data compressed by gzip, found: {error}")
            return
        self.packed = self._inflate.unconsumed_tail
        if self._inflate.eof:
            self.packed = self._inflate.unused_data.lstrip(b"\0")
            self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
            self._between = True

    def _finish(self) -> None:
        if self._compressed and not self._between:
            # The last bytes may hold more than was taken of them.
            self.unpack()
            if not self._between:
                self._end(self.flaw or "expected compressed data to go on, found the end of the file")
                return
        self.complete = True
        if self._part:
            self.ready.append(b"".join(self._part))
            self._part = []

    def _split(self, chunk: bytes) -> None:
        *whole, rest = chunk.split(b"\n")
        if whole:
            self._part.append(whole[0])
            whole[0] = b"".join(self._part)
            self.ready.extend(whole)
            self._part = []
            self._size = 0
        if rest:
            self._part.append(rest)
            self._size += len(rest)
            if self._size > LINE:
                self._end(f"expected a line of up to {LINE} bytes, found a longer one")

    def _end(self, flaw: str) -> None:
        self.flaw = flaw
        self.complete = True
        self.packed = b""
        self._part = []


class FilePublisher:
    """Appends messages to a file, one a line, and has them on the disk before it returns."""

    def __init__(self, path: str) -> None:
        self._path = path
        if path.endswith(".gz"):
            raise BrokerMisconfigured(
                f"expected a file that is not compressed, found {path!r}: a publisher that is killed would leave what "
                "nobody can read on from; compress the file when it is complete"
            )
        if path == "-":
            self._file: int | None = 1
            self._torn = False
            return
        try:
            new = not Path(path).exists()
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if new:
                _sync_folder(path)
            size = os.fstat(self._file).st_size
            # What a killed publisher left becomes a broken line of its own.
            self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        except OSError as error:
            raise _unusable(path, "written", error.strerror or str(error)) from error

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        """Append in order; see `Publisher`. What is not a structured CloudEvent on one line is refused."""
        if self._file is None:
            raise BrokerLost(f"expected {self._path} to be open, found it closed; make a new publisher")
        going, refused = screened(messages, _flaw)
        if not going:
            return refused
        data = memoryview(
            (b"\n" if self._torn else b"") + b"".join(messages[place].body + b"\n" for place in going)
        )
        try:
            while data:
                written = os.write(self._file, data)
                data = data[written:]
                self._torn = bool(data)
            if self._path != "-":
                os.fsync(self._file)
        except OSError as error:
            raise BrokerLost(f"expected to write to {self._path}, found: {error}; check the disk") from error
        return refused

    def close(self) -> None:
        """Close the file; standard output is left open."""
        if self._file is not None and self._path != "-":
            os.close(self._file)
        self._file = None


def subscribe(parts: SplitResult, consumer: str) -> FileSubscription:
    """Return a subscription to a file, `-` for standard input; raises `BadBrokerURL` or `BrokerMisconfigured`."""
    return FileSubscription(_path(parts))


def publisher(parts: SplitResult) -> FilePublisher:
    """Return a publisher to a file, `-` for standard output; raises `BadBrokerURL` or `BrokerMisconfigured`."""
    return FilePublisher(_path(parts))


def _path(parts: SplitResult) -> str:
    options = Options(parts, _FORM)
    options.finish()
    path = unquote(parts.path)
    if not path or "\0" in path or parts.netloc not in ("", "localhost") or parts.fragment:
        raise options.bad("the path of a file on this machine, with ? and # in it as %3F and %23,")
    return path


def _flaw(message: Outgoing) -> str | None:
    if len(message.body) > LINE:
        return f"expected a line of up to {LINE:,} bytes, as it can be read, found {len(message.body):,}"
    kind = message.headers.get("content-type", "none")
    if b"\n" not in message.body and kind.partition(";")[0].strip().lower() == STRUCTURED:
        return None
    lines = message.body.count(b"\n") + 1
    return (
        f"expected a message with content-type {STRUCTURED} on one line, found content-type {kind} and "
        f"{lines} lines; a file keeps no headers: write messages structured"
    )


def _sync_folder(path: str) -> None:
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _missing(path: str, found: str) -> MissingFile:
    return MissingFile(f"expected a file of messages at {path!r}, found: {found}; correct the path")


def _unusable(path: str, verb: str, found: str) -> BrokerMisconfigured:
    return BrokerMisconfigured(
        f"expected a file that can be {verb} at {path!r}, found: {found}; check the path and its permissions"
    )
