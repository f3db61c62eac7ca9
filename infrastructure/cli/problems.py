"""Exit codes, and the errors of wrong use."""

from __future__ import annotations

from ...domain.errors import OnefoldError

PROBLEMS = 1
USAGE = 2


class WrongUse(OnefoldError):
    """A command cannot do what its options ask for."""
