"""Holds a coverage report to a bound: words are the file of `coverage json` and the least share of branches, in %."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    totals = json.loads(Path(sys.argv[1]).read_text())["totals"]
    taken, all_of_them, bound = totals["covered_branches"], totals["num_branches"], float(sys.argv[2])
    share = 100 * taken / all_of_them if all_of_them else 0.0
    print(f"branches taken: {taken} of {all_of_them}, {share:.1f} %; the bound is {bound:.0f} %")
    return 0 if share >= bound else 1


if __name__ == "__main__":
    sys.exit(main())
