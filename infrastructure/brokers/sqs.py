"""Amazon SQS: standard and FIFO queues, by boto3."""

from __future__ import annotations

import json
import logging
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult

from botocore.exceptions import BotoCoreError, ClientError

from .options import Options
from .port import BrokerLost, BrokerMisconfigured, Delivery, Outgoing, Refusals
from .refusing import without_followers
from .sqs_message import group_of, identity_of, read, write
from .sqs_queue import Queue, code_of

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import MessageTypeDef, SendMessageBatchRequestEntryTypeDef

log = logging.getLogger("onefold.brokers")

_Thing = TypeVar("_Thing")

_FORM: Final = (
    "sqs://QUEUE?region=eu-central-1 or sqs:?url=https://sqs.eu-central-1.amazonaws.com/123456789012/QUEUE"
)
_BATCH: Final = 10
_CALL_BYTES: Final = 256 * 1024
_MESSAGE_BYTES: Final = 1024 * 1024
_AT_ONCE: Final = 8
_LONGEST_HOLD: Final = 12 * 3600
_TRIES: Final = 5
_FEW_RECEIVES: Final = 5

_FULL: Final = frozenset({"OverLimit", "AWS.SimpleQueueService.OverLimit"})


@dataclass(slots=True, eq=False)
class _Receipt:
    """One receive of one message; `until` is when it ends unless it is extended."""

    handle: str
    received_at: float
    until: float
    at_end: bool = False


class SqsSubscription:
    """Receives from a standard or a FIFO queue.

    `lease` is the visibility timeout, from the URL or from the queue. A receive can be extended for 12 hours; after
    that SQS delivers the message again, and the log says so. What was not acknowledged in time comes again.

    `key` is the message group, `attempt` the approximate receive count, `published_at` when SQS took the message.
    Message attributes are headers.
    """

    joined = True

    def __init__(self, queue: Queue, *, visibility: int | None, wait: int) -> None:
        self._queue = queue
        self._client = queue.client
        self._wait = wait
        self._held: dict[str, _Receipt] = {}
        self._open = True
        self._counted: tuple[float, int | None] = (float("-inf"), None)
        told = self._about()
        self._visibility = visibility or int(told.get("VisibilityTimeout", "30")) or 30
        self._retention = float(told["MessageRetentionPeriod"]) if "MessageRetentionPeriod" in told else None
        self.lease: float | None = float(self._visibility)

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries; see `Subscription`.

        SQS waits for whole seconds: a `timeout` of less than one is a poll, and a rest from asking it again.
        """
        self._require_open()
        begin = monotonic()
        taken: list[Delivery] = []
        wait = min(self._wait, int(timeout))
        while len(taken) < limit:
            count = min(_BATCH, limit - len(taken))
            try:
                some = self._take(count, 0 if taken else wait)
            except BrokerLost:
                if taken:
                    break
                raise
            taken += some
            if len(some) < count or monotonic() - begin > max(timeout, 1.0):
                break
        if not taken:
            sleep(max(0.0, begin + timeout - monotonic()))
        return taken

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Delete these from the queue; what cannot be deleted comes again."""
        self._require_open()
        left = list({delivery.handle.handle: delivery.handle for delivery in deliveries}.values())
        for pause in (0.1, 0.3, None):
            left = [receipt for some in _tens(left) for receipt in self._delete(some)]
            if not left:
                break
            if pause is not None:
                sleep(pause)
        else:
            log.warning(
                "%s: %d messages are done but could not be deleted; they come again", self._queue, len(left)
            )

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Make these visible again after `delay` seconds, rounded up, up to 12 hours from when they were received."""
        self._require_open()
        now = monotonic()
        seconds = -int(-delay // 1)
        changes = [
            (receipt, max(0, min(seconds, int(_LONGEST_HOLD - (now - receipt.received_at)))))
            for receipt in self._of(deliveries)
            if receipt.until > now
        ]
        self._change(changes)
        for delivery in deliveries:
            self._held.pop(delivery.handle.handle, None)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Keep these invisible for another lease, up to 12 hours from when they were received."""
        self._require_open()
        now = monotonic()
        changes: list[tuple[_Receipt, int]] = []
        for receipt in self._of(deliveries):
            left = int(_LONGEST_HOLD - (now - receipt.received_at))
            if left > 0:
                changes.append((receipt, min(self._visibility, left)))
            if left < self._visibility and not receipt.at_end:
                receipt.at_end = True
                log.warning(
                    "%s: a message has been held for nearly 12 hours, which is the most that SQS allows; "
                    "it is not extended any more and comes again",
                    self._queue,
                )
        self._change(changes)

    def backlog(self) -> int | None:
        """Return about how many messages are in the queue, those held by any consumer included."""
        self._require_open()
        if monotonic() - self._counted[0] >= 1.0:
            names = (
                "ApproximateNumberOfMessages",
                "ApproximateNumberOfMessagesNotVisible",
                "ApproximateNumberOfMessagesDelayed",
            )
            told = self._queue.attributes(*names)
            count = None if told is None else sum(int(told.get(name, "0")) for name in names)
            self._counted = monotonic(), count
        return self._counted[1]

    def retention(self) -> float | None:
        """Return the queue's retention period; None when this user may not ask for it."""
        return self._retention

    @property
    def ended(self) -> bool:
        """False: a queue never ends."""
        return False

    def close(self) -> None:
        """Make visible again what is held; see `Subscription`."""
        if not self._open:
            return
        self._open = False
        now = monotonic()
        try:
            self._change([(receipt, 0) for receipt in self._held.values() if receipt.until > now])
        except (BrokerLost, BrokerMisconfigured) as error:
            log.info("%s: what was held comes again when its lease ends: %s", self._queue, error)
        self._held.clear()
        self._client.close()

    def _about(self) -> Mapping[str, str]:
        told = self._queue.attributes("VisibilityTimeout", "MessageRetentionPeriod", "RedrivePolicy")
        if told is None:
            log.warning(
                "%s: this user may not ask for the queue's attributes; its retention and redrive policy are not "
                "checked; allow sqs:GetQueueAttributes",
                self._queue,
            )
            return {}
        if told.get("RedrivePolicy"):
            most = int(json.loads(told["RedrivePolicy"])["maxReceiveCount"])
            log.log(
                logging.WARNING if most < _FEW_RECEIVES else logging.INFO,
                "%s: SQS moves a message to its dead-letter queue after %d receives, also while it is being retried "
                "here; %s",
                self._queue,
                most,
                f"set maxReceiveCount to {_FEW_RECEIVES} or more"
                if most < _FEW_RECEIVES
                else "see to that queue, too",
            )
        return told

    def _take(self, count: int, wait: int) -> list[Delivery]:
        begin = monotonic()
        # A repeated request with the same attempt id gets the same messages, when the answer to the first was lost.
        attempt: dict[str, Any] = {"ReceiveRequestAttemptId": uuid.uuid4().hex} if self._queue.fifo else {}
        try:
            answer = self._client.receive_message(
                QueueUrl=self._queue.url,
                MaxNumberOfMessages=count,
                WaitTimeSeconds=wait,
                VisibilityTimeout=self._visibility,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
                **attempt,
            )
        except ClientError as error:
            if code_of(error) in _FULL:
                log.warning(
                    "%s: more messages are held than SQS allows; waiting for some to be done", self._queue
                )
                return []
            raise self._queue.failure(error) from error
        except BotoCoreError as error:
            raise self._queue.failure(error) from error
        return [self._delivery(message, begin) for message in answer.get("Messages", [])]

    def _delivery(self, message: MessageTypeDef, begin: float) -> Delivery:
        handle = message.get("ReceiptHandle", "")
        receipt = self._held[handle] = _Receipt(handle, begin, begin + self._visibility)
        about: Mapping[Any, str] = message.get("Attributes", {})
        sent = about.get("SentTimestamp")
        attempt = about.get("ApproximateReceiveCount")
        body, headers = read(message.get("Body", ""), message.get("MessageAttributes", {}))
        return Delivery(
            body,
            headers,
            f"{self._queue.name}@{message.get('MessageId', '')}",
            about.get("MessageGroupId"),
            None if sent is None else datetime.fromtimestamp(int(sent) / 1000, UTC),
            None if attempt is None else int(attempt),
            receipt,
        )

    def _of(self, deliveries: Sequence[Delivery]) -> list[_Receipt]:
        found = {delivery.handle.handle: delivery.handle for delivery in deliveries}
        return [receipt for handle, receipt in found.items() if handle in self._held]

    def _delete(self, receipts: Sequence[_Receipt]) -> list[_Receipt]:
        """Delete up to ten; return those that are worth another try."""
        with self._queue.asked():
            answer = self._client.delete_message_batch(
                QueueUrl=self._queue.url,
                Entries=[
                    {"Id": str(n), "ReceiptHandle": receipt.handle} for n, receipt in enumerate(receipts)
                ],
            )
        again = [
            receipts[int(failed["Id"])]
            for failed in answer.get("Failed", [])
            if not failed["SenderFault"] or "Throttl" in failed["Code"]
        ]
        for receipt in receipts:
            if receipt not in again:
                self._held.pop(receipt.handle, None)
        return again

    def _change(self, changes: Sequence[tuple[_Receipt, int]]) -> None:
        """Set how long messages stay invisible. What SQS refuses is not held any more: its message comes again."""
        for some in _tens(changes):
            begin = monotonic()
            try:
                answer = self._client.change_message_visibility_batch(
                    QueueUrl=self._queue.url,
                    Entries=[
                        {"Id": str(n), "ReceiptHandle": receipt.handle, "VisibilityTimeout": seconds}
                        for n, (receipt, seconds) in enumerate(some)
                    ],
                )
            except ClientError as error:
                # Some stand-ins for SQS refuse the whole batch for one message.
                if code_of(error) != "InvalidParameterValue":
                    raise self._queue.failure(error) from error
                failed = dict.fromkeys(range(len(some)), True)
            except BotoCoreError as error:
                raise self._queue.failure(error) from error
            else:
                failed = {int(entry["Id"]): entry["SenderFault"] for entry in answer.get("Failed", [])}
            for n, (receipt, seconds) in enumerate(some):
                if n not in failed:
                    receipt.until = begin + seconds
                elif failed[n]:
                    log.info("%s: the lease of a message has ended; it comes again", self._queue)
                    self._held.pop(receipt.handle, None)

    def _require_open(self) -> None:
        if not self._open:
            raise BrokerLost(
                f"expected an open subscription to {self._queue}, found it closed; subscribe again"
            )


class _Parcel(NamedTuple):
    entry: SendMessageBatchRequestEntryTypeDef
    size: int


class _Answer(NamedTuple):
    """What became of the entries of a call that were not taken, by their ids: `left` may be tried again."""

    left: Mapping[str, str]
    refused: Mapping[str, str]


class SqsPublisher:
    """Sends to a standard or a FIFO queue.

    In a FIFO queue the key is the message group, hashed where SQS does not take it as it is; a message without a key
    has a group of its own. CloudEvents are deduplicated by source and id, other messages not at all. A standard queue
    keeps no order and no key.

    A body that is no text is sent as base64, with the attribute `onefold-encoding`. Headers beyond the ten that SQS
    takes, and those it does not take by name or value, go into the attribute `onefold-headers` as JSON.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._open = True
        told = queue.attributes("MaximumMessageSize") or {}
        self._limit = int(told.get("MaximumMessageSize", _MESSAGE_BYTES))
        self._calls = ThreadPoolExecutor(_AT_ONCE, "onefold-sqs")

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        """Publish in order; see `Publisher`. Calls for several groups are under way at once."""
        if not self._open:
            raise BrokerLost(f"expected an open publisher to {self._queue}, found it closed; make a new one")
        parcels = [self._parcel(n, message) for n, message in enumerate(messages)]
        refused = {n: why for n, parcel in enumerate(parcels) if (why := self._flaw(parcel))}
        # One message of a group at a time: a failure in the middle of a call would break its order.
        groups: dict[str, deque[_Parcel]] = {}
        for n in without_followers(messages, range(len(messages)), refused):
            if n not in refused:
                name = parcels[n].entry.get("MessageGroupId", str(n))
                groups.setdefault(name, deque()).append(parcels[n])
        ready = deque(groups.values())
        failures = 0
        under_way: dict[Future[_Answer], list[deque[_Parcel]]] = {}
        try:
            while ready or under_way:
                while ready and len(under_way) < _AT_ONCE:
                    call = _filled(ready)
                    under_way[self._calls.submit(self._send, [group[0].entry for group in call])] = call
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    call, answer = under_way.pop(future), future.result()
                    failures = failures + 1 if answer.left else 0
                    if failures == _TRIES:
                        raise BrokerLost(
                            f"expected {self._queue} to take messages, found {answer.left}; publish again later"
                        )
                    for group in reversed(call):
                        name = group[0].entry["Id"]
                        if name in answer.refused:
                            refused[int(name)] = answer.refused[name]
                            if self._queue.fifo:
                                group.clear()
                        elif name not in answer.left:
                            group.popleft()
                        if group:
                            ready.appendleft(group)
                    if answer.left:
                        sleep(0.1 * 2**failures)
        finally:
            wait(under_way)
        return refused

    def close(self) -> None:
        """Close the connection."""
        if self._open:
            self._open = False
            self._calls.shutdown()
            self._queue.client.close()

    def _send(self, entries: Sequence[SendMessageBatchRequestEntryTypeDef]) -> _Answer:
        """Send one call; return the entries that were not taken, with why."""
        with self._queue.asked():
            answer = self._queue.client.send_message_batch(QueueUrl=self._queue.url, Entries=entries)
        left: dict[str, str] = {}
        refused: dict[str, str] = {}
        for entry in answer.get("Failed", []):
            if entry["SenderFault"] and "Throttl" not in entry["Code"]:
                said = entry.get("Message", "")
                refused[entry["Id"]] = f"expected {self._queue} to take it, found {entry['Code']}: {said}"
            else:
                left[entry["Id"]] = entry["Code"]
        return _Answer(left, refused)

    def _flaw(self, parcel: _Parcel) -> str | None:
        if parcel.size <= self._limit:
            return None
        return f"expected a message of up to {self._limit:,} bytes, as {self._queue} takes it, found {parcel.size:,}"

    def _parcel(self, n: int, message: Outgoing) -> _Parcel:
        text, attributes = write(message)
        size = len(text.encode()) + sum(
            len(name) + len(value.get("StringValue", "").encode()) + len("String")
            for name, value in attributes.items()
        )
        entry: SendMessageBatchRequestEntryTypeDef = {
            "Id": str(n),
            "MessageBody": text,
            "MessageAttributes": attributes,
        }
        if self._queue.fifo:
            entry["MessageDeduplicationId"] = identity_of(message)
            entry["MessageGroupId"] = (
                entry["MessageDeduplicationId"] if message.key is None else group_of(message.key)
            )
        return _Parcel(entry, size)


def subscribe(parts: SplitResult, consumer: str) -> SqsSubscription:
    """Return a subscription to a queue. All consumers of a queue share its messages.

    `sqs://QUEUE?region=R`, or `sqs:?url=` with the URL of the queue. Further options: `endpoint` (the URL of another
    server), `account` (of the owner), `wait` (seconds of a long poll, 0 to 20, default 1), `visibility` (seconds, 1 to
    43200, default the queue's). Credentials come from the environment, as boto3 finds them.

    Raises `BadBrokerURL`, `BrokerMisconfigured` or `BrokerLost`.
    """
    options = Options(parts, _FORM)
    wait = _whole(options, "wait", 1, 0, 20)
    visibility = _whole(options, "visibility", 0, 1, _LONGEST_HOLD)
    return SqsSubscription(Queue(parts, options, wait), visibility=visibility or None, wait=wait)


def publisher(parts: SplitResult) -> SqsPublisher:
    """Return a publisher to a queue; takes the URLs that `subscribe` takes, and raises the same."""
    options = Options(parts, _FORM)
    _whole(options, "wait", 1, 0, 20)
    _whole(options, "visibility", 0, 1, _LONGEST_HOLD)
    return SqsPublisher(Queue(parts, options, 1))


def _whole(options: Options, name: str, default: int, least: int, most: int) -> int:
    value = options.number(name, float("nan"), least=least)
    if value != value:
        return default
    if value > most or value != int(value):
        raise options.bad(f"a whole number from {least} to {most} for option {name}")
    return int(value)


def _filled(ready: deque[deque[_Parcel]]) -> list[deque[_Parcel]]:
    """Take groups, whose first messages fill one call."""
    call = [ready.popleft()]
    size = call[0][0].size
    while ready and len(call) < _BATCH and size + ready[0][0].size <= _CALL_BYTES:
        size += ready[0][0].size
        call.append(ready.popleft())
    return call


def _tens(things: Sequence[_Thing]) -> Iterator[Sequence[_Thing]]:
    for begin in range(0, len(things), _BATCH):
        yield things[begin : begin + _BATCH]
