"""What a member of a consumer group knows of a partition: from it follows the offset to commit."""

from __future__ import annotations

from .port import Delivery


class Partition:
    """What was handed out of a partition, from when it was assigned until it is revoked.

    The offset to commit is that of the first message that is not acknowledged, so that none is skipped. Offsets have
    gaps, where messages were compacted or transactions ended, and go back when a partition lost its end.
    """

    __slots__ = ("_again", "_open", "_sent", "next", "number", "paused", "start", "topic")

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.next = -1
        """The offset after the last one handed out, -1 before the first."""
        self.start = -1
        """The offset from which to count what waits before the first was handed out, -1 while it is unknown."""
        self.paused = False
        self._open: dict[int, Delivery] = {}
        self._again: dict[int, float] = {}
        self._sent = -1

    @property
    def unfinished(self) -> int:
        """How many messages were handed out and are not acknowledged."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """How many messages were given back, and are to be handed out again before any other."""
        return len(self._again)

    @property
    def due(self) -> float | None:
        """When the first of those that were given back may be handed out, None if there are none."""
        return self._again[min(self._again)] if self._again else None

    def hand_out(self, offset: int, delivery: Delivery) -> None:
        """Note that a message is with the caller."""
        self._open[offset] = delivery
        self.next = offset + 1

    def acknowledge(self, offset: int) -> None:
        """Note that a message is done; nothing happens the second time."""
        self._open.pop(offset, None)
        self._again.pop(offset, None)

    def give_back(self, offset: int, due: float) -> None:
        """Keep a message to be handed out again, unless it is done."""
        if offset in self._open:
            self._again[offset] = due

    def take_again(self, now: float, limit: int) -> list[Delivery]:
        """Take messages that were given back, in their order: one that is not due holds up those behind it."""
        taken: list[Delivery] = []
        for offset in sorted(self._again):
            if len(taken) == limit or self._again[offset] > now:
                break
            del self._again[offset]
            taken.append(self._open[offset])
        return taken

    def to_commit(self) -> int | None:
        """Return the offset to commit, None if there is none or it was sent before; it counts as sent from now on."""
        done = min(self._open, default=self.next)
        if done < 0 or done == self._sent:
            return None
        self._sent = done
        return done

    def not_committed(self, offset: int) -> None:
        """Note that the commit of an offset failed, so that it is sent again if none has followed it."""
        if self._sent == offset:
            self._sent = -1
