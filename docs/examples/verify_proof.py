"""Checks a proof of `onefold prove` with nothing but Python: no database, no package, none of Onefold's code.

    python verify_proof.py proof.json [--against seals.jsonl] [--key public.pem]

Prints what is proven, and ends with 0; or says what does not hold, and ends with 1. `--against` is the file that seals
were handed out to: the proof's seal must stand in it, and its chain must be whole. `--key` is the Ed25519 key by which
the seal must be signed.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import uuid
from datetime import UTC, datetime, timedelta
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any

STATEMENT = ("log", "number", "first", "last", "events", "size", "root", "marks", "previous", "sealed_at")


class DoesNotHold(Exception):
    """What is to be proven is not."""


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise DoesNotHold(otherwise)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check a proof of `onefold prove`.")
    parser.add_argument("proof", type=Path, help="the JSON that onefold prove printed")
    parser.add_argument("--against", type=Path, metavar="FILE", help="the file that seals were handed out to")
    parser.add_argument("--key", type=Path, metavar="PUBLIC", help="public Ed25519 key in PEM")
    arguments = parser.parse_args()
    try:
        proof = json.loads(arguments.proof.read_text("utf-8"))
        chain = None if arguments.against is None else chain_of(arguments.against)
        key = None if arguments.key is None else public_key(arguments.key)
        for line in check(proof, chain, key):
            sys.stdout.write(f"{line}\n")
    except DoesNotHold as error:
        sys.stderr.write(f"NOT PROVEN: {error}\n")
        return 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"NOT PROVEN: expected a proof, found none: {error!r}\n")
        return 1
    return 0


def check(proof: dict[str, Any], chain: dict[int, str] | None, key: bytes | None) -> list[str]:
    """Return what is proven, line by line; raises `DoesNotHold`."""
    path = [bytes.fromhex(step) for step in proof["path"]]
    seal = proof["seal"]
    if proof["proves"] == "inclusion":
        event = proof["event"]
        leaf = event_hash(bytes.fromhex(proof["previous"]), event)
        root = root_by_inclusion(leaf, proof["leaf"], seal["size"], path)
        require(root.hex() == seal["root"], "the path from the event does not lead to the root of the seal")
        said = [
            f"{event['stream']} version {event['version']} ({event['type']}) stands at position {event['position']},",
            f"occurred {event['occurred_at']}, recorded {event['recorded_at']}, and says {event['data']}",
        ]
        seals = [seal]
    else:
        first = proof["first"]
        continues(first, seal, path)
        said = [
            f"seal {seal['number']} speaks of all {first['size']} events of seal {first['number']}, as they were"
        ]
        seals = [first, seal]
    for each in seals:
        said += check_seal(each, chain, key)
    if chain is None and key is None:
        said.append(
            "who made the seal is not known: compare it with what was handed out (--against), or with a key (--key)"
        )
    return said


def check_seal(seal: dict[str, Any], chain: dict[int, str] | None, key: bytes | None) -> list[str]:
    number = seal["number"]
    said = [f"as sealed in seal {number} at {seal['sealed_at']}, {statement_hash(seal)}"]
    if chain is not None:
        require(number in chain, f"seal {number} was not handed out")
        require(chain[number] == statement_hash(seal), f"seal {number} is not the one that was handed out")
        said.append(f"seal {number} was handed out")
    if key is not None:
        require(seal["signature"] is not None, f"seal {number} is not signed")
        signature = bytes.fromhex(seal["signature"])
        require(is_signed(key, signature, statement(seal)), f"seal {number} is not signed by this key")
        said.append(f"seal {number} is signed by the key")
    return said


# The hash of an event: its eleven columns, each with its length, under the hash of the event before it in its stream.


def event_hash(previous: bytes, event: dict[str, Any]) -> bytes:
    columns = [
        int64(event["position"]),
        int64(event["version"]),
        int64(microseconds(event["occurred_at"])),
        int64(microseconds(event["recorded_at"])),
        uuid.UUID(event["event_id"]).bytes,
        int(event["schema_version"]).to_bytes(4, "big", signed=True),
        event["stream"].encode(),
        event["type"].encode(),
        document(event["data"]),
        None if event["raw"] is None else base64.b64decode(event["raw"]),
        document(event["metadata"]),
    ]
    content = b"".join(
        b"\xff\xff\xff\xff" if each is None else len(each).to_bytes(4, "big") + each for each in columns
    )
    return sha256(b"\0" + previous + sha256(b"onefold event 1\n" + content).digest()).digest()


def int64(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def microseconds(instant: str | int) -> int:
    if isinstance(instant, int):
        return instant
    return (datetime.fromisoformat(instant) - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def document(text: str | None) -> bytes | None:
    return None if text is None else b"\1" + text.encode()


# Seals.


def statement(seal: dict[str, Any]) -> bytes:
    fields = {name: seal[name] for name in STATEMENT}
    return b"onefold seal 1\n" + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def statement_hash(seal: dict[str, Any]) -> str:
    return sha256(statement(seal)).hexdigest()


def chain_of(file: Path) -> dict[int, str]:
    """Return the hash of each seal in a file by its number; raises `DoesNotHold` where the chain is broken."""
    found: dict[int, str] = {}
    before, last = "0" * 64, 0
    with file.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"}\n"):
                continue
            seal = json.loads(line)
            require(
                (seal["number"], seal["first"], seal["previous"]) == (len(found) + 1, last + 1, before),
                f"the chain of {file} is broken at seal {seal['number']}",
            )
            before, last = statement_hash(seal), seal["last"]
            found[seal["number"]] = before
    return found


# RFC 6962, as RFC 9162 says in 2.1.3.2 and 2.1.4.2 how it is verified.


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def root_by_inclusion(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    require(0 <= index < size, "the leaf is not in the tree")
    fn, sn, found = index, size - 1, leaf
    for step in path:
        require(sn > 0, "the path is too long")
        if fn & 1 or fn == sn:
            found = node(step, found)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            found = node(found, step)
        fn, sn = fn >> 1, sn >> 1
    require(sn == 0, "the path is too short")
    return found


def continues(first: dict[str, Any], second: dict[str, Any], path: list[bytes]) -> None:
    sizes = first["size"], second["size"]
    roots = bytes.fromhex(first["root"]), bytes.fromhex(second["root"])
    require(
        first["log"] == second["log"] and 0 < sizes[0] <= sizes[1], "the seals are not of one log, in order"
    )
    if sizes[0] == sizes[1]:
        require(roots[0] == roots[1] and not path, "two seals of as many events have two roots")
        return
    steps = path if sizes[0] & (sizes[0] - 1) else [roots[0], *path]
    require(bool(steps), "the path is empty")
    fn, sn = sizes[0] - 1, sizes[1] - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    old = new = steps[0]
    for step in steps[1:]:
        require(sn > 0, "the path is too long")
        if fn & 1 or fn == sn:
            old, new = node(step, old), node(step, new)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            new = node(new, step)
        fn, sn = fn >> 1, sn >> 1
    require(sn == 0, "the path is too short")
    require(old == roots[0], "the path does not lead to the root of the first seal")
    require(new == roots[1], "the path does not lead to the root of the second seal")


# Ed25519, RFC 8032, section 5.1.7: only to verify, and in no hurry.

P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


def is_signed(key: bytes, signature: bytes, message: bytes) -> bool:
    if len(signature) != 64:
        return False
    public, r = point_of(key), point_of(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if public is None or r is None or s >= Q:
        return False
    h = int.from_bytes(sha512(signature[:32] + key + message).digest(), "little") % Q
    base = point_of((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    assert base is not None
    return times(s, base) == plus(r, times(h, public))


def point_of(encoded: bytes) -> Point | None:
    y = int.from_bytes(encoded, "little")
    sign, y = y >> 255, y & ((1 << 255) - 1)
    if len(encoded) != 32 or y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square or (x == 0 and sign):
        return None
    return (P - x if x & 1 != sign else x), y


def plus(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P)
    return x % P, y % P


def times(factor: int, point: Point) -> Point:
    found: Point = (0, 1)
    while factor:
        if factor & 1:
            found = plus(found, point)
        point, factor = plus(point, point), factor >> 1
    return found


def public_key(file: Path) -> bytes:
    """Return the key in a PEM file: SubjectPublicKeyInfo of RFC 8410, whose last 32 bytes are the key."""
    text = file.read_text("ascii")
    lines = [line for line in text.splitlines() if line and not line.startswith("-")]
    der = base64.b64decode("".join(lines))
    require(
        der[:12].hex() == "302a300506032b6570032100" and len(der) == 44, f"{file} holds no public Ed25519 key"
    )
    return der[12:]


if __name__ == "__main__":
    sys.exit(main())
