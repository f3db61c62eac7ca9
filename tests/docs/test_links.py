"""Links between the pages lead somewhere, and every page is reached from the table of contents."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from .blocks import PAGES, ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text("utf-8"))


def links(page: Path) -> list[str]:
    targets = LINK.findall(CODE.sub("`code`", prose(page)))
    return [target for target in targets if not target.startswith(("http://", "https://"))]


def anchors(page: Path) -> set[str]:
    """What the headings of a page are reached by, as the usual renderers make it."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).lower()
        kept = (letter for letter in text if letter in " -_" or unicodedata.category(letter)[0] in ("L", "N"))
        found.add("".join(kept).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.relative_to(ROOT)}: nothing at {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.relative_to(ROOT)}: no heading for {link}"


def test_every_page_is_reached_from_the_table_of_contents() -> None:
    contents = ROOT / "docs" / "index.md"
    reached = {(contents.parent / link.partition("#")[0]).resolve() for link in links(contents)}
    assert [str(page) for page in PAGES if page not in reached and page != contents] == []
