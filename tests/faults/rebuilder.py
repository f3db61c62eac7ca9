"""A process that rebuilds the nursery's balances beside the serving table, and is killed where it is told to be.

Its arguments are a URL and a JSON object: `at` is a share of the load, or `hold`, `exchange` or `swapped`; `page`,
`resume`, `verify` and `delay` (seconds from the beginning of the exchange to the kill) may be given.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from onefold.infrastructure.rebuilding.rebuild import Rebuild
from onefold.infrastructure.rebuilding.report import Step
from onefold.infrastructure.rebuilding.swapping import Swapper


def nursery() -> Any:
    spec = importlib.util.spec_from_file_location("nursery", Path(__file__).with_name("nursery.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nursery"] = module
    spec.loader.exec_module(module)
    return module


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, options: dict[str, Any]) -> None:
    at = options.get("at")

    def look(step: Step) -> None:
        if isinstance(at, float) and step.phase == "load" and step.total and step.done >= at * step.total:
            die()

    exchange = Swapper._exchange

    def dying(self: Swapper, segment: int, *, behind: bool) -> bool:
        if at == "hold":
            die()
        if at == "exchange":
            threading.Timer(options.get("delay", 0.0), die).start()
        done = exchange(self, segment, behind=behind)
        if at == "swapped" and done:
            die()
        return done

    Swapper._exchange = dying  # type: ignore[method-assign]
    balance = nursery().balance(lease=1.0)
    done = Rebuild(
        url,
        balance,
        page=options.get("page", 20_000),
        resume=options.get("resume", False),
        verify=options.get("verify", "sample"),
        on_step=look,
    ).run()
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"swapped": done.swapped, "megabytes": megabytes, "seconds": done.seconds}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
