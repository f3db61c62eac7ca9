"""Signatures of seals: Ed25519, with keys in PEM (extra `signing`)."""

from __future__ import annotations

from pathlib import Path

from ..brokers.port import MissingExtra
from .errors import BadKey

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
except ModuleNotFoundError as error:
    raise MissingExtra(
        "signatures of seals need the package cryptography, which is not installed; install it with: "
        "pip install 'onefold[signing]'"
    ) from error


class Signer:
    """Signs with one private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key: bytes = key.public_key().public_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        """Return the signature of a statement, 64 bytes."""
        return self._key.sign(statement)


def signer_of(file: Path) -> Signer:
    """Return the signer with the private key in a PEM file without a password; raises `BadKey`."""
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey(_bad(file, "private", str(error))) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey(_bad(file, "private", f"it is of kind {type(key).__name__}"))
    return Signer(key)


def public_key_of(file: Path) -> bytes:
    """Return the 32 bytes of the public key in a PEM file; raises `BadKey`."""
    try:
        key = load_pem_public_key(file.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadKey(_bad(file, "public", str(error))) from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey(_bad(file, "public", f"it is of kind {type(key).__name__}"))
    return key.public_bytes_raw()


def is_signed(public_key: bytes, signature: bytes, statement: bytes) -> bool:
    """Tell whether the signature of a statement is by this key."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def _bad(file: Path, kind: str, reason: str) -> str:
    make = "openssl genpkey -algorithm ed25519" if kind == "private" else "openssl pkey -pubout -in KEY"
    return f"expected a {kind} Ed25519 key in PEM in {file}, found none: {reason}; make one with `{make}`"
