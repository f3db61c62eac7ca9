"""Errors of seals."""

from __future__ import annotations

from ...domain.errors import OnefoldError


class SealRefused(OnefoldError):
    """What is there already does not fit together, so nothing is sealed on top of it."""


class SealFileError(OnefoldError):
    """The file that seals are handed out to cannot be written, or is none."""


class HandedOutDiffers(OnefoldError):
    """Seals that were handed out are not those of the database: one of both was altered."""


class NotSealed(OnefoldError, LookupError):
    """What is to be proven stands in no seal."""


class BadKey(OnefoldError):
    """The file of a key cannot be read, or holds no Ed25519 key in PEM."""


class UnknownRole(OnefoldError, LookupError):
    """The server has no role of this name."""
