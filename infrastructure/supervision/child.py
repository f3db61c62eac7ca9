"""A process of the tree: the command line, told to stop when the one who started it is gone.

Run as `python -m onefold.infrastructure.supervision.child FD ARGUMENTS…`, where the other end of the pipe FD is held
by whoever starts it, and by nobody else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def await_end(descriptor: int) -> None:
    """Ask this process to stop once the other end of the pipe is closed."""
    while os.read(descriptor, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the command line with the arguments after the first, which is the pipe's descriptor."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    threading.Thread(target=await_end, args=(descriptor,), daemon=True).start()
    sys.argv[1:] = sys.argv[2:]
    from ..cli.program import main as program  # the thread watches while it loads

    program()


if __name__ == "__main__":
    main()
