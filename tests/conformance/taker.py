"""Takes messages and never ends: run as a process that is killed. Arguments: URL, consumer, how many to take."""

from __future__ import annotations

import sys
import time

from onefold.infrastructure.brokers import subscribe


def main() -> None:
    url, consumer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    subscription = subscribe(url, consumer)
    taken = 0
    while taken < count:
        taken += len(subscription.receive(count - taken, 0.2))
    print("taken", flush=True)
    while True:
        subscription.receive(0, 0.1)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
