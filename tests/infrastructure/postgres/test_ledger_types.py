"""Claims that the types refuse: there is no way to write one without a connection, nor one in a consumer's function."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

WRONG = """\
from onefold import Message, Transaction, consumer
from onefold.infrastructure.postgres.ledger import Window, claim


@consumer("payments", ordering="unordered")
def payments(message: Message, tx: Transaction) -> None:
    tx.claim(message.id)
    tx.commit()


claim("any", 1, [b""], [b""], within=Window(None, None))
"""


def test_a_claim_without_a_transaction_does_not_pass_the_type_checker(tmp_path: Path) -> None:
    """C12: check, apply and then insert the key cannot be written."""
    # mypy does not see packages that are installed in place.
    (tmp_path / "onefold").symlink_to(ROOT)
    (tmp_path / "wrong.py").write_text(WRONG, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = re.findall(r"^wrong\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert {("7", "attr-defined"), ("8", "attr-defined"), ("11", "arg-type")} <= set(found), done.stdout
    assert {line for line, _ in found} == {"7", "8", "11"}
