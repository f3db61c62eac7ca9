"""The fenced blocks of a page, and what their info strings ask for.

```python                 runs in the page's own session
```python file=parcels.py is written to a file in the page's folder, in place of an earlier one of that name
```text file=export.csv   the same, for a file of another kind
```sh run                 runs line by line; each command must end with 0
```console run            runs what stands after "$ "; below it is what it prints, to standard error if only there
```text output            is what the block before it printed

"…" in what is printed stands for any text on its line; alone on a line, for any lines. `exit=1` expects that exit
code of every command of the block. Blocks of other kinds are only shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what its info string says beside it, its text, and the line of its first line."""

    language: str
    words: frozenset[str]
    options: dict[str, str]
    text: str
    page: Path
    line: int

    @property
    def place(self) -> str:
        """Where the block stands, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, lines = (number + 1, fence["info"].strip(), fence["indent"]), []
        elif fence and not fence["info"].strip():
            found.append(_block(page, opened[0], opened[1], lines))
            opened = None
        else:
            lines.append(line.removeprefix(opened[2]))
    if opened is not None:
        raise AssertionError(f"{page}:{opened[0]}: a fenced block is not closed")
    return found


def _block(page: Path, line: int, info: str, lines: list[str]) -> Block:
    language, *rest = info.split() or [""]
    words = frozenset(word for word in rest if "=" not in word)
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Block(language, words, options, "".join(f"{each}\n" for each in lines), page, line)


def commands(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a `console` or `sh` block, each with what it is to print ("" for a `sh` block)."""
    if block.language == "sh":
        return [(line, "") for line in block.text.splitlines() if line and not line.startswith("#")]
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def prints(shown: str, found: str) -> bool:
    """Tell whether a program printed what a page shows, but for trailing blanks and what "…" stands for."""
    pattern = ""
    for line in _stripped(shown):
        if line.strip() == "…":
            pattern += r"(.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.split("…")) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _stripped(found))) is not None


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]
