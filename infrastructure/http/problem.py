"""Problems: what went wrong, as application/problem+json (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"

MISSING = "/problems/idempotency-key-missing"
MALFORMED = "/problems/idempotency-key-malformed"
REUSED = "/problems/idempotency-key-reused"
IN_USE = "/problems/idempotency-key-in-use"
TOO_LARGE = "/problems/request-too-large"
NOT_REPLAYABLE = "/problems/response-not-replayable"
UNAVAILABLE = "/problems/database-unavailable"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: `status`, `detail` for a person (what to do), and what kind it is.

    `type` is a URI reference with its full path, `about:blank` where the status says it all. Of the other members,
    `more` are put into the document, `headers` go beside it.
    """

    status: int
    detail: str
    type: str = "about:blank"
    title: str = ""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def document(self) -> dict[str, Any]:
        """The members of the document."""
        title = self.title or HTTPStatus(self.status).phrase
        return {
            "type": self.type,
            "title": title,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }

    @property
    def body(self) -> bytes:
        """The document in ASCII, so that also what is no text in UTF-8 can be quoted in it."""
        return json.dumps(self.document).encode("ascii")


def sentence(text: str) -> str:
    """Return what an error says as a sentence."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def missing(header: str) -> Problem:
    """Return the problem of a request without a key."""
    return Problem(
        400,
        f"Expected the header {header}, found none. Send one with a text that is new for each operation, such as a "
        f'random UUID in quotes ({header}: "8e03978e-40d5-43e8-bc93-6894a57f9324"), and the same one for another try.',
        MISSING,
        "Idempotency key is missing",
    )


def malformed(detail: str) -> Problem:
    """Return the problem of a key that cannot be read."""
    return Problem(400, sentence(detail), MALFORMED, "Idempotency key is malformed")


def reused() -> Problem:
    """Return the problem of a key that came with another request before."""
    return Problem(
        422,
        "Expected the request that this key was first sent with, found another query or body. Send the first request "
        "again, or give this one a key of its own.",
        REUSED,
        "Idempotency key is used for another request",
    )


def in_use(retry_after: int) -> Problem:
    """Return the problem of a request whose twin is at work."""
    return Problem(
        409,
        "The first request with this key is still at work. Send the same request again later, to get its response.",
        IN_USE,
        "Idempotency key is in use",
        headers={"Retry-After": str(retry_after)},
    )


def too_large(limit: int) -> Problem:
    """Return the problem of a request whose body is too large."""
    return Problem(
        413,
        f"Expected a body of at most {limit} bytes, found a larger one. Send less at a time.",
        TOO_LARGE,
        "Request body is too large",
    )


def not_replayable() -> Problem:
    """Return the problem of a response that cannot be kept; the reason is in the server's log."""
    return Problem(
        500,
        "The response to this request cannot be kept for its repetition, so it was not sent. This is a fault of the "
        "server: its log says what is wrong.",
        NOT_REPLAYABLE,
        "Response cannot be replayed",
    )


def unavailable(retry_after: int) -> Problem:
    """Return the problem of a database that does not answer, or did not confirm."""
    return Problem(
        503,
        "The database did not answer in time, or did not confirm. Send the same request with the same key again, to "
        "find out what became of it.",
        UNAVAILABLE,
        "Database is unavailable",
        headers={"Retry-After": str(retry_after)},
    )
