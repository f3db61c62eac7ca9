"""Amazon SQS: standard and FIFO queues, by boto3."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import re
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
)

from .options import Options
from .port import BrokerLost, BrokerMisconfigured, Delivery, Outgoing

if TYPE_CHECKING:
    from mypy_boto3_sqs.client import SQSClient
    from mypy_boto3_sqs.type_defs import (
        MessageAttributeValueTypeDef,
        MessageTypeDef,
        SendMessageBatchRequestEntryTypeDef,
    )

log = logging.getLogger("onefold.brokers")

_Thing = TypeVar("_Thing")

_FORM: Final = (
    "sqs://QUEUE?region=eu-central-1 or sqs:?url=https://sqs.eu-central-1.amazonaws.com/123456789012/QUEUE"
)
_BATCH: Final = 10
_CALL_BYTES: Final = 256 * 1024
_LONGEST_HOLD: Final = 12 * 3600
_TRIES: Final = 5
_FEW_RECEIVES: Final = 5

# What SQS takes as text is what XML 1.0 does.
_TEXT: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_IDENTITY: Final = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE: Final = re.compile(
    r"(?!(?:aws|amazon|onefold)[.-])[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", re.ASCII | re.IGNORECASE
)
_ATTRIBUTES: Final = 10
_ENCODING: Final = "onefold-encoding"
_MORE: Final = "onefold-headers"
_EMPTY: Final = "-"
_STRUCTURED: Final = "application/cloudevents+json"

_MISSING: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})
_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException"})
_REFUSED: Final = _DENIED | {
    "AuthFailure",
    "InvalidAddress",
    "InvalidClientTokenId",
    "InvalidMessageContents",
    "InvalidParameterValue",
    "InvalidSecurity",
    "KmsAccessDenied",
    "KmsDisabled",
    "KmsInvalidKeyUsage",
    "KmsInvalidState",
    "KmsNotFound",
    "KmsOptInRequired",
    "MissingParameter",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "UnsupportedOperation",
}
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

    def __init__(self, queue: _Queue, *, visibility: int | None, wait: int) -> None:
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
            if _code(error) in _FULL:
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
        body, headers = _read(message.get("Body", ""), message.get("MessageAttributes", {}))
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
                if _code(error) != "InvalidParameterValue":
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


class SqsPublisher:
    """Sends to a standard or a FIFO queue.

    In a FIFO queue the key is the message group, hashed where SQS does not take it as it is; a message without a key
    has a group of its own. CloudEvents are deduplicated by source and id, other messages not at all. A standard queue
    keeps no order and no key.

    A body that is no text is sent as base64, with the attribute `onefold-encoding`. Headers beyond the ten that SQS
    takes, and those it does not take by name or value, go into the attribute `onefold-headers` as JSON.
    """

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self._open = True

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish in order; see `Publisher`. Raises `BrokerMisconfigured` for a message that SQS refuses."""
        if not self._open:
            raise BrokerLost(f"expected an open publisher to {self._queue}, found it closed; make a new one")
        # One message of a group at a time: a failure in the middle of a call would break its order.
        groups: dict[str, deque[_Parcel]] = {}
        for n, message in enumerate(messages):
            parcel = self._parcel(n, message)
            groups.setdefault(parcel.entry.get("MessageGroupId", str(n)), deque()).append(parcel)
        ready = deque(groups.values())
        failures = 0
        while ready:
            call = [ready.popleft()]
            size = call[0][0].size
            while ready and len(call) < _BATCH and size + ready[0][0].size <= _CALL_BYTES:
                size += ready[0][0].size
                call.append(ready.popleft())
            left = self._send([group[0].entry for group in call])
            failures = failures + 1 if left else 0
            if failures == _TRIES:
                raise BrokerLost(
                    f"expected {self._queue} to take messages, found {left}; publish again later"
                )
            for group in reversed(call):
                if group[0].entry["Id"] not in left:
                    group.popleft()
                if group:
                    ready.appendleft(group)
            if left:
                sleep(0.1 * 2**failures)

    def close(self) -> None:
        """Close the connection."""
        if self._open:
            self._open = False
            self._queue.client.close()

    def _send(self, entries: Sequence[SendMessageBatchRequestEntryTypeDef]) -> dict[str, str]:
        """Send one call; return the entries that were not taken, with why, and may be tried again."""
        with self._queue.asked():
            answer = self._queue.client.send_message_batch(QueueUrl=self._queue.url, Entries=entries)
        failed = answer.get("Failed", [])
        for entry in failed:
            if entry["SenderFault"] and "Throttl" not in entry["Code"]:
                raise BrokerMisconfigured(
                    f"expected {self._queue} to take a message, found {entry['Code']}: {entry.get('Message', '')}"
                )
        return {entry["Id"]: entry["Code"] for entry in failed}

    def _parcel(self, n: int, message: Outgoing) -> _Parcel:
        text, attributes = _write(message)
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
            entry["MessageDeduplicationId"] = _identity(message)
            entry["MessageGroupId"] = (
                entry["MessageDeduplicationId"] if message.key is None else _group(message.key)
            )
        return _Parcel(entry, size)


class _Queue:
    """A queue that was found."""

    def __init__(self, parts: SplitResult, options: Options, wait: int) -> None:
        given = options.text("url", "")
        region = options.text("region", "")
        endpoint = options.text("endpoint", "")
        account = options.text("account", "")
        options.finish()
        if bool(given) == bool(parts.netloc) or parts.path or parts.fragment or "@" in parts.netloc:
            raise options.bad("the name of a queue, or its url=, and no user, port or path")
        where = urlsplit(given)
        self.name = parts.netloc or where.path.rpartition("/")[2]
        self.fifo = self.name.endswith(".fifo")
        if given:
            if where.scheme not in ("http", "https") or not where.netloc or not self.name:
                raise options.bad("url= with the URL of a queue")
            endpoint = endpoint or f"{where.scheme}://{where.netloc}"
            told = re.search(r"(?:^|\.)sqs\.([a-z0-9-]+)\.", where.netloc)
            region = region or (told[1] if told else "")
        config = Config(
            connect_timeout=3,
            read_timeout=wait + 5,
            retries={"mode": "standard", "total_max_attempts": 3},
            tcp_keepalive=True,
        )
        self.url = given
        try:
            self.client: SQSClient = boto3.session.Session().client(
                "sqs", region_name=region or None, endpoint_url=endpoint or None, config=config
            )
            self.region = self.client.meta.region_name
        except NoRegionError as error:
            raise BrokerMisconfigured(
                f"expected the region of queue {self.name}, found none; add region=… to its URL or set AWS_REGION"
            ) from error
        except (ValueError, InvalidRegionError) as error:
            raise options.bad(f"a region and an endpoint that boto3 takes ({error})") from error
        except BotoCoreError as error:
            self.region = region
            raise self.failure(error) from error
        if not given:
            with self.asked():
                owner: dict[str, Any] = {"QueueOwnerAWSAccountId": account} if account else {}
                self.url = self.client.get_queue_url(QueueName=self.name, **owner)["QueueUrl"]

    def __str__(self) -> str:
        return f"SQS queue {self.name}"

    def attributes(self, *names: Any) -> Mapping[str, str] | None:
        """Return attributes of the queue, None when this user may not."""
        try:
            answer = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        except ClientError as error:
            if _code(error) in _DENIED:
                return None
            raise self.failure(error) from error
        except BotoCoreError as error:
            raise self.failure(error) from error
        told: Any = answer.get("Attributes", {})
        return dict(told)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Turn what goes wrong at a call into an error of the port."""
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            raise self.failure(error) from error

    def failure(self, error: ClientError | BotoCoreError) -> BrokerLost | BrokerMisconfigured:
        """Return the error of the port that says what happened."""
        if isinstance(error, ClientError):
            code = _code(error)
            if code in _MISSING:
                return BrokerMisconfigured(
                    f"expected {self} in region {self.region}, found none; create it, or correct the name, region= or "
                    "account= (SQS answers the same where access to another account is not allowed)"
                )
            if code in _REFUSED:
                return BrokerMisconfigured(
                    f"expected {self} to take requests, found {error}; check the credentials, the policy of the queue "
                    "and its settings"
                )
            return BrokerLost(f"expected an answer from {self}, found {error}")
        if isinstance(error, NoCredentialsError | PartialCredentialsError | ProfileNotFound | SSOError):
            return BrokerMisconfigured(
                f"expected credentials for {self}, found: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "a profile, or a role"
            )
        if isinstance(error, ParamValidationError):
            return BrokerMisconfigured(f"expected requests to {self} that boto3 takes, found: {error}")
        return BrokerLost(
            f"expected to reach {self}, found: {error}; check the network, region= and endpoint="
        )


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
    return SqsSubscription(_Queue(parts, options, wait), visibility=visibility or None, wait=wait)


def publisher(parts: SplitResult) -> SqsPublisher:
    """Return a publisher to a queue; takes the URLs that `subscribe` takes, and raises the same."""
    options = Options(parts, _FORM)
    _whole(options, "wait", 1, 0, 20)
    _whole(options, "visibility", 0, 1, _LONGEST_HOLD)
    return SqsPublisher(_Queue(parts, options, 1))


def _whole(options: Options, name: str, default: int, least: int, most: int) -> int:
    value = options.number(name, float("nan"), least=least)
    if value != value:
        return default
    if value > most or value != int(value):
        raise options.bad(f"a whole number from {least} to {most} for option {name}")
    return int(value)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _tens(things: Sequence[_Thing]) -> Iterator[Sequence[_Thing]]:
    for begin in range(0, len(things), _BATCH):
        yield things[begin : begin + _BATCH]


def _read(text: str, attributes: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of what SQS delivered. What does not read as `_write` writes it is left as it is."""
    headers: dict[str, str] = {}
    for name, value in attributes.items():
        if "BinaryValue" in value:
            raw: bytes = value["BinaryValue"]
            try:
                headers[name.lower()] = raw.decode()
            except UnicodeDecodeError:
                headers[name.lower()] = base64.b64encode(raw).decode()
        else:
            headers[name.lower()] = value.get("StringValue", "")
    body = text.encode("utf-8", "surrogatepass")
    if headers.get(_ENCODING) == "base64":
        try:
            body = b"" if text == _EMPTY else base64.b64decode(text, validate=True)
            del headers[_ENCODING]
        except (binascii.Error, ValueError):
            pass
    return body, _unpacked(headers)


def _unpacked(headers: dict[str, str]) -> dict[str, str]:
    try:
        more = json.loads(headers[_MORE])
    except (KeyError, ValueError):
        return headers
    if not isinstance(more, dict) or not all(isinstance(value, str) for value in more.values()):
        return headers
    del headers[_MORE]
    return headers | {name.lower(): value for name, value in more.items()}


def _write(message: Outgoing) -> tuple[str, dict[str, MessageAttributeValueTypeDef]]:
    """Return text and attributes that SQS takes."""
    fit: dict[str, str] = {}
    more: dict[str, str] = {}
    for name, value in message.headers.items():
        fits = len(name) <= 256 and _ATTRIBUTE.fullmatch(name) and _TEXT.fullmatch(value)
        (fit if fits else more)[name] = value
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = ""
    if not _TEXT.fullmatch(text):
        text = base64.b64encode(message.body).decode() or _EMPTY
        fit = {_ENCODING: "base64"} | fit
    room = _ATTRIBUTES if len(fit) <= _ATTRIBUTES and not more else _ATTRIBUTES - 1
    for name in list(fit)[room:]:
        more[name] = fit.pop(name)
    if more:
        fit[_MORE] = json.dumps(more)
    return text, {name: {"DataType": "String", "StringValue": value} for name, value in fit.items()}


def _group(key: str) -> str:
    return key if _IDENTITY.fullmatch(key) else "sha256-" + hashlib.sha256(key.encode()).hexdigest()


def _identity(message: Outgoing) -> str:
    """Return by what a FIFO queue tells that it has a message already.

    Only what has an identity can be recognised: two equal bodies without one are two messages.
    """
    for prefix in ("ce-", "ce_"):
        source, number = message.headers.get(f"{prefix}source"), message.headers.get(f"{prefix}id")
        if source and number:
            return hashlib.sha256(json.dumps([source, number]).encode()).hexdigest()
    if message.headers.get("content-type", "").lower().startswith(_STRUCTURED):
        return hashlib.sha256(message.body).hexdigest()
    return uuid.uuid4().hex
