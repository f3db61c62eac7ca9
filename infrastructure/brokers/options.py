"""Options in the URL of a broker."""

from __future__ import annotations

import math
import re
from urllib.parse import SplitResult, parse_qsl, urlsplit

from .port import BadBrokerURL

_SECRET = re.compile(r"([^&=]*(?:password|secret|token|key|pem|jaas|oauthbearer)[^&=]*)=[^&]*", re.IGNORECASE)


class Options:
    """The query of a broker's URL, each option taken once; `form` shows what such a URL looks like."""

    def __init__(self, parts: SplitResult, form: str) -> None:
        self._parts = parts
        self._form = form
        self._left: dict[str, str] = {}
        self._known: set[str] = set()
        try:
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise self.bad("options as name=value") from error
        for name, value in pairs:
            if name in self._left:
                raise self.bad(f"option {name} once")
            self._left[name] = value

    def text(self, name: str, default: str) -> str:
        """Return an option, `default` when it is not there; raises `BadBrokerURL` when it is empty."""
        self._known.add(name)
        value = self._left.pop(name, default)
        if not value and default:
            raise self.bad(f"a value for option {name}")
        return value

    def number(self, name: str, default: float, *, least: float = 0.0) -> float:
        """Return an option that is a finite number of at least `least`; raises `BadBrokerURL` for others."""
        self._known.add(name)
        text = self._left.pop(name, None)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise self.bad(f"a number of at least {least:g} for option {name}")
        return value

    def rest(self) -> dict[str, str]:
        """Return the options that were not taken, which are taken by it."""
        rest, self._left = self._left, {}
        return rest

    def finish(self) -> None:
        """Raise `BadBrokerURL` when an option is left that nobody took."""
        if self._left:
            known = f"known: {', '.join(sorted(self._known))}" if self._known else "none is known"
            raise self.bad(f"no option {min(self._left)!r} ({known})")

    def bad(self, expected: str) -> BadBrokerURL:
        """Return an error that says what was expected, and shows the URL without its secrets."""
        return BadBrokerURL(
            f"expected {expected} in a URL such as {self._form}, found {_without_secrets(self._parts)!r}"
        )


def shown(url: str) -> str:
    """Return the URL of a broker as it may be shown: without its user, and without passwords and keys."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    safe = _without_secrets(parts)
    return url if safe == parts.geturl() else safe


def _without_secrets(parts: SplitResult) -> str:
    _, at, host = parts.netloc.rpartition("@")
    netloc = f"***@{host}" if at else host
    return parts._replace(netloc=netloc, query=_SECRET.sub(r"\1=***", parts.query)).geturl()
