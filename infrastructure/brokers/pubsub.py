"""Google Cloud Pub/Sub, by the calls of google-cloud-pubsub, without its background threads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import SplitResult

import grpc
from google.api_core.exceptions import GoogleAPICallError, PermissionDenied
from google.api_core.gapic_v1.routing_header import to_grpc_metadata
from google.auth.exceptions import GoogleAuthError
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import PublishRequest, PublishResponse, PullRequest, PullResponse, Subscription

from .options import Options
from .port import BrokerLost, BrokerMisconfigured, Delivery, Outgoing, Refusals
from .pubsub_name import Name, error_of
from .refusing import screened

log = logging.getLogger("onefold.brokers")

_FORM: Final = "pubsub://PROJECT/SUBSCRIPTION, or pubsub://PROJECT/TOPIC to publish"
_SECONDS: Final = 5.0
_PULL_SECONDS: Final = 60.0
_MOST: Final = 1000
_REQUEST_BYTES: Final = 9_000_000
_MESSAGE_BYTES: Final = 64
_LONGEST_LEASE: Final = 600
_LONGEST_HOLD: Final = 3600
_AT_ONCE: Final = 32
_TRIES: Final = 5
_EMPTY: Final = "onefold-empty"
_LARGEST: Final = 10_000_000
_ATTRIBUTES: Final = 100
_NAME_BYTES: Final = 256
_VALUE_BYTES: Final = 1024

_PAUSES: Final = (0.1, 0.3, None)
_AGAIN: Final = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)


# It has no types of its own.
_routing: Callable[[Any], tuple[str, str]] = to_grpc_metadata


class _Call(Protocol):
    """A call under way, as gRPC gives it."""

    def result(self, timeout: float | None = None) -> Any: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def done(self) -> bool: ...
    def cancel(self) -> bool: ...
    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...


@dataclass(slots=True, eq=False)
class _Receipt:
    """One delivery of one message; `until` is when it ends unless it is extended."""

    ack_id: str
    key: str
    received_at: float
    until: float
    at_end: bool = False


class PubsubSubscription:
    """Pulls from a subscription.

    `lease` is the deadline for acknowledgements, from the URL or from the subscription. A message is extended for up to
    an hour; after that Pub/Sub delivers it again, and the log says so. Where the subscription keeps order, what is
    given back comes again with all that follows it in its ordering key, what was acknowledged of that included.

    `key` is the ordering key, `published_at` when Pub/Sub took the message, `attempt` the count of deliveries where
    the subscription has a dead-letter topic. Attributes are headers.
    """

    joined = True

    # A pull that is cut short by the client may lose what the server was just handing out, until the lease of that
    # ends. So one pull stays under way from one `receive` to the next.

    def __init__(self, name: Name, lease: int | None) -> None:
        self._name = name
        self._open = True
        self._pulling: _Call | None = None
        self._ready: deque[Delivery] = deque()
        self._held: dict[str, _Receipt] = {}
        self._transport: Any = name.transport(SubscriberGrpcTransport)
        self._client = SubscriberClient(transport=self._transport)
        self._metadata = _routing((("subscription", name.path),))
        self._pull: Any = self._transport.grpc_channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull",
            request_serializer=PullRequest.serialize,
            response_deserializer=PullResponse.pb().FromString,
        )
        try:
            about = self._about()
        except BaseException:
            self._transport.close()
            raise
        self._given_lease = about.ack_deadline_seconds if about else None
        self._seconds = lease or self._given_lease or 60
        self.lease: float | None = float(self._seconds)
        self._retention = _retention(about) if about else None
        self._ordered = about is None or about.enable_message_ordering
        self._counts_attempts = bool(about and about.dead_letter_policy.dead_letter_topic)

    @property
    def ended(self) -> bool:
        """False: a subscription never ends."""
        return False

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries; see `Subscription`."""
        self._require_open()
        end = monotonic() + timeout
        self._keep_ready()
        if not limit:
            if self._pulling is not None and self._pulling.done():
                self._collect(0.0)
            sleep(max(0.0, end - monotonic()))
            return []
        while not self._ready:
            if self._pulling is None:
                request = PullRequest(subscription=self._name.path, max_messages=min(limit, _MOST))
                self._pulling = self._pull.future(request, timeout=_PULL_SECONDS, metadata=[self._metadata])
            begin = monotonic()
            self._collect(max(0.0, end - begin))
            if monotonic() >= end:
                break
            if not self._ready:
                # The server may answer at once that there is nothing.
                sleep(max(0.0, min(begin + 0.05, end) - monotonic()))
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Be done with these for good; what Pub/Sub does not accept as such comes again."""
        self._require_open()
        receipts = list({delivery.handle.ack_id: delivery.handle for delivery in deliveries}.values())
        for some in _parts(receipts):
            left = self._tell(some, self._acknowledge)
            if left:
                log.warning(
                    "%s: %d messages are done but were not accepted; they come again", self._name, left
                )
        for receipt in receipts:
            self._held.pop(receipt.ack_id, None)

    def give_back(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Have these delivered again after `delay` seconds, rounded up, up to ten minutes.

        Where the subscription keeps order, all that is held and follows them in their ordering keys goes with them, as
        Pub/Sub delivers it again in any case; it may still be acknowledged, to no effect.
        """
        self._require_open()
        wanted = {receipt.ack_id for receipt in self._of(deliveries)}
        keys: set[str] = set()
        receipts: list[_Receipt] = []
        for receipt in self._held.values():
            if receipt.ack_id in wanted or receipt.key in keys:
                receipts.append(receipt)
                if self._ordered and receipt.key:
                    keys.add(receipt.key)
        for receipt in receipts:
            del self._held[receipt.ack_id]
        self._ready = deque(delivery for delivery in self._ready if delivery.handle.ack_id in self._held)
        self._set(receipts, min(_LONGEST_LEASE, -int(-delay // 1)))

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Hold these for another lease, up to an hour from when they were received."""
        self._require_open()
        now = monotonic()
        within: list[_Receipt] = []
        for receipt in self._of(deliveries):
            if now + self._seconds <= receipt.received_at + _LONGEST_HOLD:
                within.append(receipt)
            elif not receipt.at_end:
                receipt.at_end = True
                log.warning(
                    "%s: a message has been held for nearly an hour; it is not extended any more and comes again",
                    self._name,
                )
        self._set(within, self._seconds)

    def backlog(self) -> int | None:
        """Return None: only Cloud Monitoring knows."""
        return None

    def retention(self) -> float | None:
        """Return how long the subscription or its topic keeps messages; None when this user may not ask."""
        return self._retention

    def close(self) -> None:
        """Give back what is held; see `Subscription`."""
        if not self._open:
            return
        try:
            if self._pulling is not None:
                if self._pulling.done():
                    self._collect(0.0)
                else:
                    self._pulling.cancel()
            now = monotonic()
            self._set([receipt for receipt in self._held.values() if receipt.until > now], 0)
        except (BrokerLost, BrokerMisconfigured) as error:
            log.info("%s: what was held comes again when its lease ends: %s", self._name, error)
        self._open = False
        self._held.clear()
        self._ready.clear()
        self._transport.close()

    def _about(self) -> Subscription | None:
        try:
            with self._name.asked():
                about = self._client.get_subscription(
                    subscription=self._name.path, retry=None, timeout=_SECONDS
                )
        except BrokerMisconfigured as error:
            if not isinstance(error.__cause__, PermissionDenied):
                raise
            log.warning(
                "%s: this user may not ask for its settings; its retention and dead-letter policy are not checked; "
                "allow pubsub.subscriptions.get",
                self._name,
            )
            return None
        kind = (
            ("pushes" if about.push_config.push_endpoint else "")
            or ("writes to BigQuery" if about.bigquery_config.table else "")
            or ("writes to Cloud Storage" if about.cloud_storage_config.bucket else "")
            or ("is detached from its topic" if about.detached else "")
        )
        if kind:
            raise BrokerMisconfigured(
                f"expected {self._name} to be one that is pulled, found that it {kind}; make a pull subscription"
            )
        if about.topic == "_deleted-topic_":
            log.warning("%s: its topic was deleted; nothing new will come", self._name)
        policy = about.dead_letter_policy
        if policy.dead_letter_topic:
            log.info(
                "%s: Pub/Sub moves a message to %s after about %d deliveries, also while it is being retried here; "
                "see to that topic, too",
                self._name,
                policy.dead_letter_topic,
                policy.max_delivery_attempts or 5,
            )
        return about

    def _collect(self, timeout: float) -> None:
        """Take what the pull under way has brought within `timeout` seconds."""
        assert self._pulling is not None
        try:
            answer = self._pulling.result(timeout)
        except grpc.FutureTimeoutError:
            return
        except grpc.RpcError as error:
            self._pulling = None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return
            raise self._name.failure(error_of(error)) from error
        self._pulling = None
        now = monotonic()
        lease = self._given_lease or 10
        taken = [self._delivery(received, now, now + lease) for received in answer.received_messages]
        if self._seconds != self._given_lease:
            self._set([delivery.handle for delivery in taken], self._seconds)
        self._ready += taken

    def _delivery(self, received: Any, now: float, until: float) -> Delivery:
        receipt = self._held[received.ack_id] = _Receipt(
            received.ack_id, received.message.ordering_key, now, until
        )
        message = received.message
        headers = {name.lower(): value for name, value in message.attributes.items()}
        if not message.data:
            headers.pop(_EMPTY, None)
        return Delivery(
            message.data,
            headers,
            f"{self._name.last}@{message.message_id}",
            message.ordering_key or None,
            message.publish_time.ToDatetime(tzinfo=UTC) if message.HasField("publish_time") else None,
            received.delivery_attempt if self._counts_attempts and received.delivery_attempt else None,
            receipt,
        )

    def _keep_ready(self) -> None:
        """Extend what waits here for a caller with room."""
        half = monotonic() + self._seconds / 2
        if self._ready and self._ready[0].handle.until < half:
            self.extend(self._ready)

    def _of(self, deliveries: Sequence[Delivery]) -> list[_Receipt]:
        found = {delivery.handle.ack_id: delivery.handle for delivery in deliveries}
        return [receipt for ack_id, receipt in found.items() if ack_id in self._held]

    def _acknowledge(self, ids: list[str]) -> None:
        self._client.acknowledge(subscription=self._name.path, ack_ids=ids, retry=None, timeout=_SECONDS)

    def _set(self, receipts: Sequence[_Receipt], seconds: int) -> None:
        """Set how long the broker waits for these from now on."""

        def modify(ids: list[str]) -> None:
            self._client.modify_ack_deadline(
                subscription=self._name.path,
                ack_ids=ids,
                ack_deadline_seconds=seconds,
                retry=None,
                timeout=_SECONDS,
            )

        for some in _parts(receipts):
            until = monotonic() + seconds
            self._tell(some, modify)
            for receipt in some:
                receipt.until = until

    def _tell(self, receipts: Sequence[_Receipt], tell: Callable[[list[str]], None]) -> int:
        """Tell the broker about receipts; return how many it did not accept.

        Of a subscription with exactly-once delivery it says so for each; what may be accepted later is told again, and
        what never will be is not held any more: its message comes again.
        """
        left = [receipt.ack_id for receipt in receipts]
        refused = 0
        for pause in _PAUSES:
            try:
                tell(left)
                return refused
            except GoogleAPICallError as error:
                found: Mapping[str, str] = error.metadata or {}
                reasons = {ack_id: found[ack_id] for ack_id in left if ack_id in found}
                if not reasons:
                    raise self._name.failure(error) from error
            except GoogleAuthError as error:
                raise self._name.failure(error) from error
            left = [ack_id for ack_id, reason in reasons.items() if reason.startswith("TRANSIENT_")]
            for ack_id in reasons.keys() - set(left):
                self._held.pop(ack_id, None)
                refused += 1
            if not left:
                return refused
            if pause is not None:
                sleep(pause)
        return refused + len(left)

    def _require_open(self) -> None:
        if not self._open:
            raise BrokerLost(
                f"expected an open subscription to {self._name}, found it closed; subscribe again"
            )


class PubsubPublisher:
    """Publishes to a topic. The key is the ordering key; a message without one is not ordered.

    A message without body and headers, which Pub/Sub refuses, gets the attribute `onefold-empty`.
    """

    def __init__(self, name: Name) -> None:
        self._name = name
        self._open = True
        self._transport: Any = name.transport(PublisherGrpcTransport)
        self._metadata = _routing((("topic", name.path),))
        self._publish: Any = self._transport.grpc_channel.unary_unary(
            "/google.pubsub.v1.Publisher/Publish",
            request_serializer=PublishRequest.serialize,
            response_deserializer=PublishResponse.pb().FromString,
        )

    def publish(self, messages: Sequence[Outgoing]) -> Refusals:
        """Publish in order; see `Publisher`. Requests of several keys are under way at once."""
        if not self._open:
            raise BrokerLost(f"expected an open publisher to {self._name}, found it closed; make a new one")
        going, refused = screened(messages, _flaw)
        ready = deque(_requests(self._name.path, messages, going))
        later: deque[deque[_Request]] = deque()
        under_way: dict[_Call, deque[_Request]] = {}
        done: SimpleQueue[_Call] = SimpleQueue()
        rounds = 0
        failure: grpc.RpcError | None = None
        while ready or under_way:
            while ready and len(under_way) < _AT_ONCE:
                line = ready.popleft()
                call: _Call = self._publish.future(
                    line[0].request, timeout=2 * _SECONDS, metadata=[self._metadata]
                )
                under_way[call] = line
                call.add_done_callback(done.put)
            call = done.get()
            line = under_way.pop(call)
            error = call.exception()
            if error is None:
                line.popleft()
                if line:
                    ready.append(line)
            else:
                assert isinstance(error, grpc.RpcError)
                if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                    if len(line[0].places) == 1:
                        # What follows it in its key is in this line, and stays unsent.
                        refused[line[0].places[0]] = _words(error)
                    else:
                        # One of them is to blame, and none was taken.
                        parts = [*_alone(line.popleft())]
                        if messages[parts[0].places[0]].key:
                            ready.append(deque([*parts, *line]))
                        else:
                            ready.extend(deque([part]) for part in parts)
                    continue
                if error.code() not in _AGAIN:
                    failure, rounds = error, _TRIES
                elif rounds < _TRIES:
                    failure = error
                # Nothing that follows in this line was sent yet.
                later.append(line)
            if rounds == _TRIES:
                ready.clear()
            elif later and not (ready or under_way) and (rounds := rounds + 1) < _TRIES:
                sleep(0.1 * 2**rounds)
                ready, later = later, ready
        if later:
            assert failure is not None
            raise self._name.failure(error_of(failure)) from failure
        return refused

    def close(self) -> None:
        """Close the connection."""
        if self._open:
            self._open = False
            self._transport.close()


def subscribe(parts: SplitResult, consumer: str) -> PubsubSubscription:
    """Return a subscription. All consumers of a subscription share its messages.

    `pubsub://PROJECT/SUBSCRIPTION`, with the options `lease` (seconds, 1 to 600, default the subscription's) and
    `endpoint` (host and port: a regional one of Google's, or an emulator, for which PUBSUB_EMULATOR_HOST does as well).
    Credentials are the application default ones.

    Raises `BadBrokerURL`, `BrokerMisconfigured` or `BrokerLost`.
    """
    options = Options(parts, _FORM)
    lease = _lease(options)
    return PubsubSubscription(Name(parts, options, "subscription"), lease)


def publisher(parts: SplitResult) -> PubsubPublisher:
    """Return a publisher to `pubsub://PROJECT/TOPIC`, with the option `endpoint`; raises as `subscribe` does.

    That the topic is missing shows when something is published.
    """
    options = Options(parts, _FORM)
    return PubsubPublisher(Name(parts, options, "topic"))


def _lease(options: Options) -> int | None:
    value = options.number("lease", 0.0)
    if value != int(value) or not 0 <= value <= _LONGEST_LEASE:
        raise options.bad(f"a whole number from 1 to {_LONGEST_LEASE} for option lease")
    return int(value) or None


def _retention(about: Subscription) -> float:
    days = 7 * 86400.0
    own: Any = about.message_retention_duration
    topic: Any = about.topic_message_retention_duration
    # What a topic keeps can be delivered again by a seek.
    return max(own.total_seconds() if own else days, topic.total_seconds() if topic else 0.0)


def _parts(receipts: Sequence[_Receipt]) -> Iterator[Sequence[_Receipt]]:
    for begin in range(0, len(receipts), _MOST):
        yield receipts[begin : begin + _MOST]


class _Request(NamedTuple):
    request: PublishRequest
    places: list[int]


def _requests(topic: str, messages: Sequence[Outgoing], places: Sequence[int]) -> Iterator[deque[_Request]]:
    """Yield lines of requests: those of a line one after the other, as all messages of a key are in one."""
    keys: dict[str | None, list[int]] = {}
    for place in places:
        keys.setdefault(messages[place].key or None, []).append(place)
    for key, group in keys.items():
        requests: list[_Request] = []
        size = _REQUEST_BYTES
        for place in group:
            message = messages[place]
            mine = _size_of(message)
            if size + mine > _REQUEST_BYTES or len(requests[-1].places) == _MOST:
                requests.append(_Request(PublishRequest(topic=topic), []))
                size = 0
            size += mine
            attributes = dict(message.headers) or ({} if message.body else {_EMPTY: "1"})
            requests[-1].places.append(place)
            PublishRequest.pb(requests[-1].request).messages.add(
                data=message.body, attributes=attributes, ordering_key=key or ""
            )
        if key is None:
            yield from (deque([request]) for request in requests)
        else:
            yield deque(requests)


def _alone(request: _Request) -> Iterator[_Request]:
    """Yield the messages of a request in one each."""
    found: Any = PublishRequest.pb(request.request)
    for message, place in zip(found.messages, request.places, strict=True):
        alone = PublishRequest(topic=request.request.topic)
        PublishRequest.pb(alone).messages.append(message)
        yield _Request(alone, [place])


def _size_of(message: Outgoing) -> int:
    mine = _MESSAGE_BYTES + len(message.body) + len((message.key or "").encode())
    return mine + sum(len(f"{name}{value}".encode()) + 16 for name, value in message.headers.items())


def _flaw(message: Outgoing) -> str | None:
    """Return what Pub/Sub would refuse a message for: its documented limits."""
    if (size := _size_of(message)) > _LARGEST:
        return f"expected a message of up to {_LARGEST:,} bytes, as Pub/Sub takes it, found {size:,}"
    if len(message.headers) > _ATTRIBUTES:
        return f"expected up to {_ATTRIBUTES} headers, as Pub/Sub takes them, found {len(message.headers)}"
    for name, value in message.headers.items():
        if not 0 < len(name.encode()) <= _NAME_BYTES or name.lower().startswith("goog"):
            return (
                f"expected names of headers of 1 to {_NAME_BYTES} bytes that do not begin with goog, "
                f"found {name[:80]!r}"
            )
        if len(value.encode()) > _VALUE_BYTES:
            return f"expected headers of up to {_VALUE_BYTES} bytes, found a longer one, {name[:80]!r}"
    if len((message.key or "").encode()) > _VALUE_BYTES:
        return f"expected a key of up to {_VALUE_BYTES} bytes, as Pub/Sub takes it, found a longer one"
    return None


def _words(error: grpc.RpcError) -> str:
    """Return why Pub/Sub refuses what was sent."""
    found: Any = error
    return f"expected Pub/Sub to take it, found: {found.details()}"
