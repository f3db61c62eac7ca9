"""Verifying a log: that it is what was sealed, and what was done to it if it is not."""

from __future__ import annotations

import multiprocessing
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import Identifier, Literal

from ...domain.merkle import Peaks
from ...domain.seal import Seal
from ..connection import connected
from ..history import require_log
from ..postgres.sql import statement
from . import handed
from .finding import Finding, Kind
from .range import RangeVerifier
from .stored import StoredSeal, marks, seals

BY_ITSELF = 20_000
"""Events up to which no processes are started."""

MOST_PROCESSES = 8

Report = Callable[[int], None]
"""Told of events that were verified, since the last call."""


@dataclass(slots=True)
class Verdict:
    """What a verification came to.

    `events` were compared with `seals` seals, up to position `upto`; `unsealed` events come after the last seal, and
    nothing is proven of them. The log is what was sealed if there are no `findings`.
    """

    events: int = 0
    seals: int = 0
    upto: int = 0
    unsealed: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether all that was looked at is as it was sealed."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class Claim:
    """A seal that is to be verified, and what else is known of it: where its marks lie, and the tree before it."""

    seal: Seal
    before: Peaks | None
    file: Path | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    url: str
    log: str
    snapshot: str
    hashes: bool
    claims: list[Claim]


def verify(
    url: str,
    *,
    log: str = "events",
    stream: str | None = None,
    first: int = 1,
    last: int | None = None,
    against: Path | None = None,
    public_key: bytes | None = None,
    processes: int | None = None,
    progress: Report = lambda _events: None,
) -> Verdict:
    """Compare a log with its seals, in one snapshot of the database.

    All of it, or the ranges that hold the events of one `stream`, or positions from `first` to `last`. With `against`,
    the seals of that file are what counts, and those of the database are compared with them. With `public_key`, 32
    bytes, each seal must be signed by it. `processes` is 1 for each processor unless it is given.

    Raises `UnknownLog`, `SealFileError`, and `MissingExtra` for a key without the extra `signing`.
    """
    with connected(url, application="onefold verify") as connection, _snapshot(connection) as snapshot:
        # One whose guards were taken away is not among the logs any more, and is what is to be verified.
        if not _exists(connection, log):
            require_log(connection, log)
        verdict = Verdict()
        stored = seals(connection, log)
        given = [] if against is None else list(handed.read(against))
        claims = list(_claims(stored, given, log, against, verdict.findings))
        _check_chain([claim.seal for claim in claims], verdict.findings)
        if public_key is not None:
            _check_signatures(stored, given, public_key, verdict.findings)
        everything = stream is None and first <= 1 and last is None
        has_hashes = _exists(connection, f"{log}_hashes")
        if not everything:
            positions = None if stream is None else _positions(connection, log, stream, has_hashes)
            claims = list(_chosen(claims, positions, first, last))
        wanted = sum(claim.seal.events for claim in claims)
        count = 1 if wanted <= BY_ITSELF else min(processes or os.cpu_count() or 1, MOST_PROCESSES)
        jobs = [_Job(url, log, snapshot, has_hashes, part) for part in _parts(claims, count)]
        for job_events, findings in _run(connection, jobs, progress):
            verdict.events += job_events
            verdict.findings += findings
        verdict.seals = len(claims)
        verdict.upto = claims[-1].seal.last if claims else 0
        if everything:
            _look_outside(connection, log, verdict, has_hashes)
        verdict.findings = _with_origins(connection, log, verdict.findings)
        if stream is not None:
            verdict.findings = [each for each in verdict.findings if _concerns(each, stream)]
        verdict.findings.sort(key=_place)
        return verdict


def _place(finding: Finding) -> tuple[bool, int, int]:
    """What findings are ordered by: events first, as they stand in the log."""
    return finding.position is None, finding.position or 0, finding.seal


def _concerns(finding: Finding, stream: str) -> bool:
    stands = None if finding.stands is None else finding.stands[0]
    return finding.kind is Kind.SEAL or finding.stream in (stream, None) or stands == stream


@contextmanager
def _snapshot(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Yield the name of the snapshot that the connection reads in meanwhile."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        yield row[0]
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


def _claims(
    stored: Sequence[StoredSeal],
    given: Sequence[handed.HandedOut],
    log: str,
    file: Path | None,
    findings: list[Finding],
) -> Iterator[Claim]:
    """Yield the seals that count, those of the file first, and tell where the database has others."""
    kept = {each.seal.number: each for each in stored}
    last = 0
    for number, line in sorted({each.seal.number: each for each in given if each.seal.log == log}.items()):
        mine = kept.get(number)
        if mine is None:
            findings.append(Finding(Kind.SEAL, number, detail="handed out, and gone from the database"))
        elif mine.seal != line.seal:
            findings.append(
                Finding(
                    Kind.SEAL,
                    number,
                    detail=f"not the one that was handed out: {_apart(mine.seal, line.seal)} differ",
                )
            )
        yield Claim(line.seal, _before(kept.get(number - 1), number), file, line.offset)
        last = number
    for each in stored:
        if each.seal.number > last:
            if each.hash != each.seal.hash:
                findings.append(
                    Finding(
                        Kind.SEAL, each.seal.number, detail="its statement was altered: it has another hash"
                    )
                )
            yield Claim(each.seal, _before(kept.get(each.seal.number - 1), each.seal.number))


def _before(stored: StoredSeal | None, number: int) -> Peaks | None:
    """Return the tree up to the seal of this number, as far as the seal before it tells."""
    if number == 1:
        return Peaks()
    return None if stored is None else stored.tree


def _apart(one: Seal, other: Seal) -> str:
    mine, theirs = one.fields(), other.fields()
    return ", ".join(name for name in mine if mine[name] != theirs[name])


def _check_chain(chain: Sequence[Seal], findings: list[Finding]) -> None:
    before: Seal | None = None
    for seal in chain:
        if not seal.follows(before):
            expected = 1 if before is None else before.number + 1
            detail = (
                f"expected seal {expected} in front of it, found none"
                if seal.number != expected
                else "it does not follow the seal before it: one of both was altered"
            )
            findings.append(Finding(Kind.SEAL, seal.number, detail=detail))
        before = seal


def _check_signatures(
    stored: Sequence[StoredSeal],
    given: Sequence[handed.HandedOut],
    public_key: bytes,
    findings: list[Finding],
) -> None:
    from .signing import is_signed

    signed: list[tuple[str, StoredSeal | handed.HandedOut]] = [
        *(("the database", each) for each in stored),
        *(("the file", each) for each in given),
    ]
    for place, each in signed:
        if each.signature is None:
            detail = f"not signed in {place}"
        elif not is_signed(public_key, each.signature, each.seal.statement()):
            detail = f"its signature in {place} is not by this key"
        else:
            continue
        findings.append(Finding(Kind.SEAL, each.seal.number, detail=detail))


def _positions(connection: psycopg.Connection[Any], log: str, stream: str, has_hashes: bool) -> list[int]:
    """Return where events of a stream stand, or stood as far as the hashes tell."""
    table = Identifier("onefold", log)
    hashes = Identifier("onefold", f"{log}_hashes") if has_hashes else table
    query = statement("seal_of_stream", log=table, hashes=hashes)
    with connection.cursor(row_factory=tuple_row) as cursor:
        return [position for (position,) in cursor.execute(query, {"stream": stream})]


def _chosen(
    claims: Sequence[Claim], positions: Sequence[int] | None, first: int, last: int | None
) -> Iterator[Claim]:
    for claim in claims:
        seal = claim.seal
        if seal.last < first or (last is not None and seal.first > last):
            continue
        if positions is None or bisect_left(positions, seal.first) < bisect_right(positions, seal.last):
            yield claim


def _exists(connection: psycopg.Connection[Any], table: str) -> bool:
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(
            "SELECT to_regclass(format('onefold.%%I', %s::text)) IS NOT NULL", (table,)
        ).fetchone()
    return row == (True,)


def _parts(claims: Sequence[Claim], count: int) -> Iterator[list[Claim]]:
    """Yield the claims in `count` parts at most, of about as many events each, in order."""
    share = sum(claim.seal.events for claim in claims) / count
    part: list[Claim] = []
    for claim in claims:
        part.append(claim)
        if sum(each.seal.events for each in part) >= share:
            yield part
            part = []
    if part:
        yield part


def _run(
    connection: psycopg.Connection[Any], jobs: list[_Job], progress: Report
) -> Iterator[tuple[int, list[Finding]]]:
    if len(jobs) <= 1:
        for job in jobs:
            yield from _each(_work(connection, job), progress)
        return
    # Processes of their own: hashing in one of them would keep the others waiting.
    with ProcessPoolExecutor(len(jobs), mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_apart_from_all, job) for job in jobs]):
            yield from _each([done.result()], progress)


def _each(
    results: Iterable[tuple[int, list[Finding]]], progress: Report
) -> Iterator[tuple[int, list[Finding]]]:
    for events, findings in results:
        progress(events)
        yield events, findings


def _apart_from_all(job: _Job) -> tuple[int, list[Finding]]:
    with connected(job.url, application="onefold verify") as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(statement("seal_snapshot", snapshot=Literal(job.snapshot)))
        events, findings = 0, list[Finding]()
        for count, found in _work(connection, job):
            events += count
            findings += found
    return events, findings


def _work(connection: psycopg.Connection[Any], job: _Job) -> Iterator[tuple[int, list[Finding]]]:
    verifier = RangeVerifier(connection, job.log, hashes=job.hashes)
    tree: Peaks | None = None
    for claim in job.claims:
        # The tree that was verified counts more than the one that is kept.
        fits = tree is not None and tree.size == claim.seal.size - claim.seal.events
        marked, finding = _marks(connection, job.log, claim)
        result = verifier.verify(claim.seal, marked, tree if fits else claim.before)
        tree = result.tree
        yield result.events, ([] if finding is None else [finding]) + result.findings


def _marks(
    connection: psycopg.Connection[Any], log: str, claim: Claim
) -> tuple[bytes | None, Finding | None]:
    """Return the marks that the seal tells the hash of, and what is wrong with those of the database."""
    seal, finding = claim.seal, None
    found = marks(connection, log, seal.number)
    if found is not None:
        if sha256(found).digest() == seal.marks:
            return found, None
        finding = Finding(Kind.SEAL, seal.number, detail="its marks were altered")
    if claim.file is not None:
        found = handed.marks_at(claim.file, claim.offset)
        if sha256(found).digest() == seal.marks:
            return found, finding
    return None, finding


def _look_outside(connection: psycopg.Connection[Any], log: str, verdict: Verdict, has_hashes: bool) -> None:
    """Look for what no seal speaks of."""
    names = {"log": Identifier("onefold", log), "hashes": Identifier("onefold", f"{log}_hashes")}
    values = {"last": verdict.upto}
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(statement("seal_tail", log=names["log"]), values).fetchone()
        assert row is not None
        verdict.unsealed = row[0]
        for position, stream, version in cursor.execute(
            statement("seal_tail_gaps", log=names["log"]), values
        ):
            verdict.findings.append(
                Finding(
                    Kind.REMOVED,
                    0,
                    None,
                    stream,
                    version - 1,
                    detail=f"missing before version {version} at position {position}, which is not sealed yet",
                )
            )
        if not has_hashes:
            return
        for what, position, stream, version in cursor.execute(statement("seal_outside", **names), values):
            if what == "event":
                verdict.findings.append(
                    Finding(
                        Kind.INSERTED, 0, position, stream, version, detail="in front of the first position"
                    )
                )
            else:
                verdict.findings.append(
                    Finding(
                        Kind.HASH,
                        0,
                        position,
                        stream,
                        version,
                        detail="no seal speaks of it: seals were removed",
                    )
                )


def _with_origins(connection: psycopg.Connection[Any], log: str, findings: list[Finding]) -> list[Finding]:
    """Tell events that were moved from those that were altered, by where the one that stands there was sealed."""
    moved = {each.stands for each in findings if each.stands is not None}
    if not moved:
        return findings
    values = {"streams": [stream for stream, _ in moved], "versions": [version for _, version in moved]}
    query = statement("seal_origins", hashes=Identifier("onefold", f"{log}_hashes"))
    with connection.cursor(row_factory=tuple_row) as cursor:
        origins = {(stream, version): position for stream, version, position in cursor.execute(query, values)}
    told: list[Finding] = []
    for each in findings:
        if each.stands is None:
            told.append(each)
            continue
        origin = origins.get(each.stands)
        now = f"{each.stands[0]} version {each.stands[1]} stands there now"
        if origin is None or origin == each.position:
            told.append(replace(each, detail=_and(each.detail, now)))
        else:
            now = f"{now}, which was sealed at position {origin}"
            told.append(replace(each, kind=Kind.MOVED, detail=_and(each.detail, now)))
    return told


def _and(one: str, other: str) -> str:
    return f"{one}; {other}" if one else other
