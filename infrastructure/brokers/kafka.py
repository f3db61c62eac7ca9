"""Kafka: consumer groups whose offsets follow what is done, and an idempotent producer."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from urllib.parse import SplitResult, unquote

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from ...domain.errors import OnefoldError
from .kafka_client import CLIENT_LOG, PASSING, WRONG, lost, made, require_topics, text_of
from .kafka_partition import Partition
from .kafka_publisher import KafkaPublisher
from .options import Options
from .port import BrokerLost, BrokerMisconfigured, Delivery

FORM: Final = "kafka://host:port[,host:port]/topic[,topic]?group=NAME"
COMMIT_SECONDS: Final = 0.2
"""How often offsets are committed at most, besides at the end of an assignment."""
PROBE_SECONDS: Final = 5.0
"""How long a cluster, all of whose brokers went away, may take to answer before it is lost."""
CLOSE_SECONDS: Final = 5.0
"""How long the cluster may take to confirm what is committed at the end."""
REBALANCE_SECONDS: Final = 5.0
"""How long no offsets are committed after a commit failed, unless partitions are assigned before."""
FULL_SECONDS: Final = 1.0
"""How long the caller's buffer may be full before fetching stops, which throws away what was fetched ahead."""
JOIN_SECONDS: Final = 3.0
"""How long the group may take to let this member in before a line says so."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OURS: Final = {
    "bootstrap.servers": "the place of hosts",
    "group.id": "the option group",
    "enable.auto.commit": "false: offsets follow what is done",
    "enable.auto.offset.store": "false: offsets follow what is done",
}
_CONNECTION: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl.",
    "socket.",
    "broker.",
    "client.",
    "enable.sasl.",
)
_LATEST: Final = ("latest", "largest", "end")
_log = logging.getLogger(__name__)


class KafkaSubscription:
    """A member of a consumer group.

    Of every partition, the offset that is committed is that of the first message which is not acknowledged: a failed
    one is never skipped. Commits are sent at most every `COMMIT_SECONDS`, and before partitions are given up. What is
    given back is held here, and its partition with it: nothing behind it is handed out before it. An acknowledgement
    that comes after its partition was revoked has no effect, as another member has the message by then.

    `published_at` is the record's timestamp: the broker's clock for topics with LogAppendTime, else the producer's. A
    header that comes twice counts the last time; bytes that are no UTF-8 are shown as escapes, as are those of keys.
    """

    lease: float | None = None
    ended = False
    joined = False

    def __init__(self, servers: str, topics: Sequence[str], group: str, settings: dict[str, str]) -> None:
        self._servers = servers
        self._topics = tuple(topics)
        self._group = group
        self._settings = settings
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._ahead: deque[Message] = deque()
        self._open = True
        self._down = False
        self._failure: OnefoldError | None = None
        self._full_since: float | None = None
        self._outside_since = time.monotonic()
        self._outside_told = False
        self._committed_at = -math.inf
        self._commits = 0
        self._rebalanced_by = -math.inf
        self._backlog: tuple[float, int | None] = (-math.inf, None)
        self._retention: float | None = None
        self._retention_known = False
        defaults: dict[str, Any] = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 16384,
            "socket.timeout.ms": 10_000,
        }
        if settings.get("group.protocol", "classic").lower() == "classic":
            defaults["partition.assignment.strategy"] = "cooperative-sticky"
        self._consumer: Consumer = made(
            Consumer,
            {
                **defaults,
                **settings,
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "error_cb": self._note,
                "on_commit": self._committed,
            },
        )
        try:
            require_topics(self._consumer, servers, self._topics, self)
            self._consumer.subscribe(
                list(self._topics),
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )
        except BaseException:
            self._open = False
            raise

    @property
    def failure(self) -> OnefoldError | None:
        """What the client reported that ends the subscription."""
        return self._failure

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries; see `Subscription`. With `limit` 0 fetching stops after a second."""
        self._require_open()
        self._probe()
        self._commit()
        self._tell_of_waiting()
        if not limit:
            self._idle(timeout)
            return []
        self._full_since = None
        self._set_pauses(full=False)
        taken = self._take_ready(limit)
        if len(taken) < limit:
            wait = 0.0 if taken else min(timeout, self._soonest())
            self._fetch(taken, limit, wait)
        if not taken:
            taken = self._take_ready(limit)
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Let the offsets of these be committed; see `Subscription`."""
        self._require_open()
        for delivery in deliveries:
            partition, offset = delivery.handle
            partition.acknowledge(offset)
        self._commit()

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Hold these, and their partitions, and hand them out again after `delay` seconds; see `Subscription`."""
        self._require_open()
        due = time.monotonic() + delay
        for delivery in deliveries:
            partition, offset = delivery.handle
            partition.give_back(offset, due)
        self._set_pauses(full=self._full_since is not None)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: a partition is a member's own as long as it polls."""
        self._require_open()

    def backlog(self) -> int | None:
        """Return how many offsets of the assigned partitions were not handed out; asked at most once a second.

        None before any is assigned; what other members of the group have to do is theirs to tell. Gaps that
        compaction and transactions leave are counted as well.
        """
        self._require_open()
        now = time.monotonic()
        if now - self._backlog[0] >= 1:
            self._backlog = (now, self._ask_backlog())
        return self._backlog[1]

    def retention(self) -> float | None:
        """Return the longest `retention.ms` of the topics in seconds, infinity where messages are only compacted."""
        self._require_open()
        if not self._retention_known:
            self._retention = self._ask_retention()
            self._retention_known = True
        return self._retention

    def close(self) -> None:
        """Commit what is done and leave the group; see `Subscription`."""
        if not self._open:
            return
        self._open = False
        try:
            # Where no broker answers, leaving the group would take for ever: the session times out as well.
            if not self._down and not isinstance(self._failure, BrokerLost) and self._settles():
                self._consumer.close()
        except (KafkaException, OnefoldError, RuntimeError) as error:
            _log.warning("leaving the group of %s failed: %s", self._place, text_of(error))
        del self._consumer
        self._partitions.clear()
        self._ahead.clear()

    def _require_open(self) -> None:
        if not self._open:
            raise BrokerLost(
                f"expected a subscription to {self._place} that is open, found it closed; subscribe again"
            )
        if self._failure is not None:
            raise self._failure

    @property
    def _place(self) -> str:
        return f"kafka://{self._servers}/{','.join(self._topics)}"

    # -- taking

    def _idle(self, timeout: float) -> None:
        """Stay a member of the group without taking anything."""
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < FULL_SECONDS:
            time.sleep(timeout)
            return
        self._set_pauses(full=True)
        message = self._poll(timeout)
        if message is not None:
            self._ahead.append(message)

    def _fetch(self, taken: list[Delivery], limit: int, wait: float) -> None:
        first = self._poll(wait)
        if first is None:
            return
        messages = [first]
        if limit - len(taken) > 1:
            messages += self._consumed(limit - len(taken) - 1)
        for message in messages:
            self._hand_out(message, taken)

    def _poll(self, timeout: float) -> Message | None:
        try:
            message = self._consumer.poll(max(0.0, timeout))
        except (KafkaException, RuntimeError) as error:
            raise self._lost_by(error) from error
        if self._failure is not None:
            raise self._failure
        return message if message is not None and self._is_sound(message) else None

    def _consumed(self, limit: int) -> list[Message]:
        try:
            messages = self._consumer.consume(limit, 0)
        except (KafkaException, RuntimeError) as error:
            raise self._lost_by(error) from error
        return [message for message in messages if self._is_sound(message)]

    def _is_sound(self, message: Message) -> bool:
        """Tell whether this is a message, and no report of an error."""
        error = message.error()
        if error is None:
            return True
        self._note(error)
        return False

    def _hand_out(self, message: Message, taken: list[Delivery]) -> None:
        topic, number, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert number is not None
        assert offset is not None
        partition = self._partitions.get((topic, number))
        if partition is None:
            # It was revoked in between: another member gets it.
            return
        if partition.waiting:
            self._ahead.append(message)
            return
        delivery = _delivery(message, partition, offset)
        partition.hand_out(offset, delivery)
        taken.append(delivery)

    def _take_ready(self, limit: int) -> list[Delivery]:
        """Take what was given back and is due, and what was fetched while the caller's buffer was full."""
        taken: list[Delivery] = []
        now = time.monotonic()
        for partition in self._partitions.values():
            taken += partition.take_again(now, limit - len(taken))
        for _ in range(len(self._ahead)):
            message = self._ahead.popleft()
            if len(taken) < limit:
                self._hand_out(message, taken)
            else:
                self._ahead.append(message)
        self._set_pauses(full=False)
        return taken

    def _soonest(self) -> float:
        """Return in how many seconds the next message that was given back is due."""
        dues = [due for partition in self._partitions.values() if (due := partition.due) is not None]
        return max(0.0, min(dues, default=math.inf) - time.monotonic())

    def _set_pauses(self, *, full: bool) -> None:
        """Fetch from the partitions that may be handed out from, and from no others."""
        changed = [
            partition
            for partition in self._partitions.values()
            if partition.paused is not (full or partition.waiting > 0)
        ]
        if not changed:
            return
        for partition in changed:
            partition.paused = not partition.paused
        stopped = [_word(partition) for partition in changed if partition.paused]
        going = [_word(partition) for partition in changed if not partition.paused]
        try:
            if stopped:
                self._consumer.pause(stopped)
            if going:
                self._consumer.resume(going)
        except (KafkaException, RuntimeError) as error:
            raise self._lost_by(error) from error

    # -- committing

    def _commit(self) -> None:
        now = time.monotonic()
        if now < max(self._committed_at + COMMIT_SECONDS, self._rebalanced_by):
            return
        self._committed_at = now
        offsets = self._undone(self._partitions.values())
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
                self._commits += 1
            except (KafkaException, RuntimeError) as error:
                self._unsent(offsets, error)

    def _settles(self) -> bool:
        """Commit what is done, and tell whether the broker answers in time."""
        until = time.monotonic() + CLOSE_SECONDS
        self._set_pauses(full=True)
        self._committed_at = self._rebalanced_by = -math.inf
        self._commit()
        while self._commits and time.monotonic() < until:
            self._consumer.poll(0.05)
        self._consumer.list_topics(self._topics[0], timeout=max(0.1, until - time.monotonic()))
        return not self._commits

    def _undone(self, partitions: Iterable[Partition]) -> list[TopicPartition]:
        """Return what is to be committed of these, and note that it is sent."""
        offsets: list[TopicPartition] = []
        for partition in partitions:
            done = partition.to_commit()
            if done is not None:
                offsets.append(TopicPartition(partition.topic, partition.number, done))
        return offsets

    def _unsent(self, offsets: Iterable[TopicPartition], error: object) -> None:
        """Note that a commit failed: it is sent again, unless the partition is another member's by now."""
        for offset in offsets:
            partition = self._partitions.get((offset.topic, offset.partition))
            if partition is not None:
                partition.not_committed(offset.offset)
        # A commit in the middle of a rebalance makes the client join anew, which would never end.
        self._rebalanced_by = time.monotonic() + REBALANCE_SECONDS
        _log.info("offsets of %s were not committed: %s", ", ".join(self._topics), error)

    def _committed(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        self._commits = max(0, self._commits - 1)
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            self._unsent(offsets, error)
            if error.code() in WRONG:
                self._note(error)
            return
        failed = [offset for offset in offsets if offset.error is not None]
        if failed:
            self._unsent(failed, failed[0].error)

    # -- being a member

    def _tell_of_waiting(self) -> None:
        waited = time.monotonic() - self._outside_since
        if not (self.joined or self._outside_told) and waited >= JOIN_SECONDS:
            self._outside_told = True
            _log.info(
                "waiting for the group %s to let this member in; a member that was killed holds it up until its "
                "session ends",
                self._group,
            )

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.joined = True
        if self._outside_told:
            self._outside_told = False
            waited = time.monotonic() - self._outside_since
            _log.info("joined the group %s after %.0f s", self._group, waited)
        self._rebalanced_by = -math.inf
        for one in partitions:
            self._partitions[one.topic, one.partition] = Partition(one.topic, one.partition)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = self._forget(partitions)
        offsets = self._undone(gone)
        if offsets and not self._down:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except (KafkaException, RuntimeError) as error:
                self._unsent(offsets, error)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.joined = False
        self._outside_since = time.monotonic()
        gone = self._forget(partitions)
        unfinished = sum(partition.unfinished for partition in gone)
        _log.warning(
            "the group went on without this member: %s partitions of %s, with %s unfinished messages, are others' now",
            len(gone),
            ", ".join(self._topics),
            unfinished,
        )

    def _forget(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        # The client would keep a partition paused until it is assigned again.
        paused = [TopicPartition(one.topic, one.partition) for one in partitions]
        with contextlib.suppress(KafkaException, RuntimeError):
            self._consumer.resume(paused)
        keys = {(one.topic, one.partition) for one in partitions}
        self._ahead = deque(one for one in self._ahead if (one.topic(), one.partition()) not in keys)
        return [gone for key in keys if (gone := self._partitions.pop(key, None)) is not None]

    def _note(self, error: KafkaError) -> None:
        """Take the client's report of an error; it may come in the middle of any call."""
        code = error.code()
        if code == KafkaError._ALL_BROKERS_DOWN:
            self._down = True
        elif code in WRONG:
            self._failure = BrokerMisconfigured(
                f"expected {self._place} to let this consumer read, found: {error.str()}; "
                "check the topic, the group and their access rights"
            )
        elif error.fatal():
            self._failure = BrokerLost(
                f"expected {self._place} to keep this consumer, found: {error.str()}; subscribe again"
            )
        elif code not in PASSING and not error.retriable():
            _log.warning("%s: %s", self._place, error.str())

    def _probe(self) -> None:
        """Ask whether the cluster is back, if all its brokers went away; raises `BrokerLost` if it is not."""
        if not self._down:
            return
        try:
            self._consumer.list_topics(self._topics[0], timeout=PROBE_SECONDS)
        except (KafkaException, RuntimeError) as error:
            raise self._lost_by(error) from error
        self._down = False

    def _lost_by(self, error: Exception) -> BrokerLost:
        failure = self._failure = lost(self._servers, error)
        return failure

    # -- asking

    def _ask_backlog(self) -> int | None:
        try:
            unknown = [one for one in self._partitions.values() if one.next < 0 and one.start < 0]
            if unknown:
                for found in self._consumer.committed([_word(one) for one in unknown], timeout=2):
                    partition = self._partitions.get((found.topic, found.partition))
                    if partition is not None and found.offset >= 0:
                        partition.start = found.offset
            counts = [self._waiting(partition) for partition in self._partitions.values()]
            return sum(counts) if counts else None
        except (KafkaException, RuntimeError, TimeoutError) as error:
            _log.info("the backlog of %s cannot be asked: %s", self._place, error)
            return None

    def _waiting(self, partition: Partition) -> int:
        word = _word(partition)
        low, high = self._consumer.get_watermark_offsets(word, cached=True)
        if high < 0 or partition.paused:
            # The client's own types leave out what it returns when time is over.
            asked = cast(
                "tuple[int, int] | None",
                self._consumer.get_watermark_offsets(word, 2.0, cached=False),
            )
            if asked is None:
                raise TimeoutError("no answer in 2 seconds")
            low, high = asked
        if partition.next < 0 and partition.start < 0:
            partition.start = high if self._settings.get("auto.offset.reset") in _LATEST else low
        position = partition.next if partition.next >= 0 else partition.start
        return max(0, high - max(low, position)) + partition.waiting

    def _ask_retention(self) -> float | None:
        settings = {name: value for name, value in self._settings.items() if name.startswith(_CONNECTION)}
        try:
            admin = AdminClient({**settings, "bootstrap.servers": self._servers}, logger=CLIENT_LOG)
            asked = admin.describe_configs(
                [ConfigResource("topic", topic) for topic in self._topics], request_timeout=5
            )
            return max(_retention(future.result(10)) for future in asked.values())
        except LookupError as error:
            _log.info(
                "the retention of %s is not known: the broker did not list the setting %s",
                self._place,
                error.args[0],
            )
        except (KafkaException, ValueError, TimeoutError, RuntimeError) as error:
            _log.info("the retention of %s cannot be asked: %s", self._place, error)
        return None


def subscribe(parts: SplitResult, consumer: str) -> KafkaSubscription:
    """Return a membership in the group of `consumer`, `onefold.NAME` unless the URL says `group=`.

    Every other option of the URL is a setting of librdkafka. Raises `BadBrokerURL`, `BrokerMisconfigured` or
    `BrokerLost`.
    """
    options = Options(parts, FORM)
    servers, topics = _place(parts, options)
    group = options.text("group", f"onefold.{consumer}")
    return KafkaSubscription(servers, topics, group, _settings(options))


def publisher(parts: SplitResult) -> KafkaPublisher:
    """Return a publisher to the one topic of the URL; raises as `subscribe` does."""
    options = Options(parts, FORM)
    servers, topics = _place(parts, options)
    if len(topics) != 1:
        raise options.bad("one topic to publish to")
    options.text("group", "")
    settings = _settings(options)
    for name in ("acks", "request.required.acks", "enable.idempotence"):
        if name in settings:
            raise options.bad(
                f"no option {name} (all replicas in sync have a message, once, before it counts)"
            )
    return KafkaPublisher(servers, topics[0], settings)


def _place(parts: SplitResult, options: Options) -> tuple[str, list[str]]:
    topics = [unquote(topic) for topic in parts.path.removeprefix("/").split(",")]
    if not parts.netloc or "@" in parts.netloc or parts.fragment or not all(topics):
        raise options.bad("hosts and topics, and what a login needs as options sasl.username and so on,")
    return parts.netloc, topics


def _settings(options: Options) -> dict[str, str]:
    settings = options.rest()
    for name, reason in _OURS.items():
        if name in settings:
            raise options.bad(f"no option {name} ({reason})")
    return settings


def _word(partition: Partition) -> TopicPartition:
    """Return the client's word for a partition."""
    return TopicPartition(partition.topic, partition.number)


def _delivery(message: Message, partition: Partition, offset: int) -> Delivery:
    key = message.key()
    kind, milliseconds = message.timestamp()
    headers = cast("Sequence[tuple[str, bytes | str | None]]", message.headers() or ())
    return Delivery(
        message.value() or b"",
        {name.lower(): _text(value) for name, value in headers},
        f"{partition.topic}[{partition.number}]@{offset}",
        None if key is None else _text(key),
        _instant(milliseconds) if kind else None,
        None,
        (partition, offset),
    )


def _text(value: bytes | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def _instant(milliseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _retention(settings: dict[str, Any]) -> float:
    """Return for how long a topic with these settings keeps a message; raises KeyError if they do not say."""
    if "cleanup.policy" in settings and settings["cleanup.policy"].value == "compact":
        return math.inf
    milliseconds = int(settings["retention.ms"].value)
    return math.inf if milliseconds < 0 else milliseconds / 1000
