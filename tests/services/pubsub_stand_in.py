"""A stand-in for Google Pub/Sub, for machines without the emulator: the same interface, everything in memory.

`pubsub_stand_in.py PORT` serves topics, subscriptions, publishing, pulling (also streamed), acknowledging and the
deadline for it, ordering keys, back-off, delivery attempts and dead-letter topics. A message that was not acknowledged
in time or was given back comes again, and with an ordering key all later messages of the key come again after it, those
acknowledged too. There are no filters, snapshots, schemas, push or exactly-once delivery.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1 import types

DEADLINE_SECONDS = 10
KEPT = timedelta(days=7)
STREAM_SECONDS = 0.02
PULL_SECONDS = 1.0
REQUEST_BYTES = 10_000_000


@dataclass(slots=True, eq=False)
class Kept:
    """A message in a subscription: ready at `ready`, or out under `ack_id` until `deadline`, or acknowledged."""

    message: types.PubsubMessage
    ready: float = 0.0
    ack_id: str | None = None
    deadline: float = 0.0
    acknowledged: bool = False
    attempts: int = 0


@dataclass(slots=True, eq=False)
class Queue:
    subscription: types.Subscription
    kept: list[Kept] = field(default_factory=list)


class Broker:
    """What the service knows; one lock guards it all, and is notified of whatever may have made a message ready."""

    def __init__(self) -> None:
        self.topics: dict[str, types.Topic] = {}
        self.queues: dict[str, Queue] = {}
        self.changed = threading.Condition()
        self.numbers = itertools.count(1)

    def publish(self, topic: str, messages: list[types.PubsubMessage]) -> list[str]:
        ids = []
        for message in messages:
            message.message_id = str(next(self.numbers))
            message.publish_time = datetime.now(UTC)
            ids.append(message.message_id)
            for queue in self.queues.values():
                if queue.subscription.topic == topic:
                    queue.kept.append(Kept(message))
        self.changed.notify_all()
        return ids

    def take(self, queue: Queue, limit: int, seconds: float) -> list[types.ReceivedMessage]:
        """Hand out what is ready, in order of publishing, for `seconds`."""
        now = time.monotonic()
        self.expire(queue, now)
        ordered = queue.subscription.enable_message_ordering
        policy = queue.subscription.dead_letter_policy
        out = {one.message.ordering_key for one in queue.kept if one.ack_id}
        waiting: set[str] = set()
        taken: list[types.ReceivedMessage] = []
        for one in list(queue.kept):
            key = one.message.ordering_key if ordered else ""
            if one.acknowledged or one.ack_id or (key and (key in out or key in waiting)):
                continue
            if one.ready > now or len(taken) >= limit:
                waiting.add(key)
                continue
            if policy.dead_letter_topic and one.attempts >= (policy.max_delivery_attempts or 5):
                queue.kept.remove(one)
                message = types.PubsubMessage(
                    data=one.message.data,
                    attributes=one.message.attributes,
                    ordering_key=one.message.ordering_key,
                )
                self.publish(policy.dead_letter_topic, [message])
                continue
            one.attempts += 1
            one.ack_id = f"{one.message.message_id}-{next(self.numbers)}"
            one.deadline = now + seconds
            attempt = one.attempts if policy.dead_letter_topic else 0
            taken.append(
                types.ReceivedMessage(ack_id=one.ack_id, message=one.message, delivery_attempt=attempt)
            )
        return taken

    def acknowledge(self, queue: Queue, ack_ids: list[str]) -> None:
        self.expire(queue, time.monotonic())
        ids = set(ack_ids)
        for one in queue.kept:
            if one.ack_id in ids:
                one.ack_id, one.acknowledged = None, True
        # An acknowledged message is remembered while an earlier one of its key may bring it again.
        unfinished: set[str] = set()
        left = []
        for one in queue.kept:
            key = one.message.ordering_key if queue.subscription.enable_message_ordering else ""
            if one.acknowledged and (not key or key not in unfinished):
                continue
            if not one.acknowledged:
                unfinished.add(key)
            left.append(one)
        queue.kept = left
        self.changed.notify_all()

    def modify(self, queue: Queue, ack_ids: list[str], seconds: list[int]) -> None:
        now = time.monotonic()
        self.expire(queue, now)
        wanted = dict(zip(ack_ids, seconds, strict=True))
        for one in list(queue.kept):
            if one.ack_id in wanted:
                if wanted[one.ack_id]:
                    one.deadline = now + wanted[one.ack_id]
                else:
                    self.give_back(queue, one, now)
        self.changed.notify_all()

    def expire(self, queue: Queue, now: float) -> None:
        for one in list(queue.kept):
            if one.ack_id and one.deadline <= now:
                self.give_back(queue, one, now)

    def give_back(self, queue: Queue, one: Kept, now: float) -> None:
        policy = queue.subscription.retry_policy
        least = policy.minimum_backoff.total_seconds() if policy.minimum_backoff else 0.0
        most = policy.maximum_backoff.total_seconds() if policy.maximum_backoff else 600.0
        one.ack_id = None
        one.ready = now + min(most, least * 2 ** max(0, one.attempts - 1))
        key = one.message.ordering_key
        if key and queue.subscription.enable_message_ordering:
            for later in queue.kept[queue.kept.index(one) + 1 :]:
                if later.message.ordering_key == key:
                    later.ack_id, later.acknowledged = None, False


class Service:
    """The calls of the interface, by their names there."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def _topic(self, name: str, context: grpc.ServicerContext) -> types.Topic:
        if name not in self.broker.topics:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Topic not found (resource={name}).")
        return self.broker.topics[name]

    def _queue(self, name: str, context: grpc.ServicerContext) -> Queue:
        if name not in self.broker.queues:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Subscription does not exist (resource={name}).")
        return self.broker.queues[name]

    def CreateTopic(self, request: types.Topic, context: grpc.ServicerContext) -> types.Topic:
        with self.broker.changed:
            if request.name in self.broker.topics:
                context.abort(
                    grpc.StatusCode.ALREADY_EXISTS, f"Topic already exists (resource={request.name})."
                )
            self.broker.topics[request.name] = request
            return request

    def GetTopic(self, request: types.GetTopicRequest, context: grpc.ServicerContext) -> types.Topic:
        with self.broker.changed:
            return self._topic(request.topic, context)

    def ListTopics(self, request: types.ListTopicsRequest, _context: grpc.ServicerContext) -> Any:
        with self.broker.changed:
            found = [one for one in self.broker.topics.values() if one.name.startswith(f"{request.project}/")]
            return types.ListTopicsResponse(topics=found)

    def DeleteTopic(self, request: types.DeleteTopicRequest, context: grpc.ServicerContext) -> Any:
        with self.broker.changed:
            del self.broker.topics[self._topic(request.topic, context).name]
            for queue in self.broker.queues.values():
                if queue.subscription.topic == request.topic:
                    queue.subscription.topic = "_deleted-topic_"
            return empty_pb2.Empty()

    def Publish(self, request: types.PublishRequest, context: grpc.ServicerContext) -> types.PublishResponse:
        with self.broker.changed:
            self._topic(request.topic, context)
            return types.PublishResponse(
                message_ids=self.broker.publish(request.topic, list(request.messages))
            )

    def CreateSubscription(self, request: types.Subscription, context: grpc.ServicerContext) -> Any:
        with self.broker.changed:
            if request.name in self.broker.queues:
                context.abort(
                    grpc.StatusCode.ALREADY_EXISTS, f"Subscription already exists (resource={request.name})."
                )
            self._topic(request.topic, context)
            request.ack_deadline_seconds = request.ack_deadline_seconds or DEADLINE_SECONDS
            if not 10 <= request.ack_deadline_seconds <= 600:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, "Invalid ack deadline given (expected 10 to 600)."
                )
            request.message_retention_duration = request.message_retention_duration or KEPT
            self.broker.queues[request.name] = Queue(request)
            return request

    def GetSubscription(self, request: types.GetSubscriptionRequest, context: grpc.ServicerContext) -> Any:
        with self.broker.changed:
            return self._queue(request.subscription, context).subscription

    def ListSubscriptions(
        self, request: types.ListSubscriptionsRequest, _context: grpc.ServicerContext
    ) -> Any:
        with self.broker.changed:
            found = [queue.subscription for queue in self.broker.queues.values()]
            mine = [one for one in found if one.name.startswith(f"{request.project}/")]
            return types.ListSubscriptionsResponse(subscriptions=mine)

    def DeleteSubscription(
        self, request: types.DeleteSubscriptionRequest, context: grpc.ServicerContext
    ) -> Any:
        with self.broker.changed:
            self._queue(request.subscription, context)
            del self.broker.queues[request.subscription]
            self.broker.changed.notify_all()
            return empty_pb2.Empty()

    def Pull(self, request: types.PullRequest, context: grpc.ServicerContext) -> types.PullResponse:
        end = time.monotonic() + (0.0 if request.return_immediately else PULL_SECONDS)
        with self.broker.changed:
            while True:
                queue = self._queue(request.subscription, context)
                seconds = queue.subscription.ack_deadline_seconds
                # A client that gave up must not be handed messages that it never sees.
                active = context.is_active()
                taken = self.broker.take(queue, request.max_messages, seconds) if active else []
                if taken or not active or time.monotonic() >= end:
                    return types.PullResponse(received_messages=taken)
                self.broker.changed.wait(STREAM_SECONDS)

    def StreamingPull(
        self, requests: Iterator[types.StreamingPullRequest], context: grpc.ServicerContext
    ) -> Iterator[types.StreamingPullResponse]:
        first = next(requests)
        name, seconds = first.subscription, first.stream_ack_deadline_seconds or DEADLINE_SECONDS
        mine: set[str] = set()

        def listen() -> None:
            # The client's side ends with an error of gRPC's own when the stream does.
            try:
                for request in requests:
                    with self.broker.changed:
                        queue = self._queue(name, context)
                        self.broker.acknowledge(queue, list(request.ack_ids))
                        ids = list(request.modify_deadline_ack_ids)
                        self.broker.modify(queue, ids, list(request.modify_deadline_seconds))
            except (grpc.RpcError, KeyError):
                return

        with self.broker.changed:
            self._queue(name, context)
        threading.Thread(target=listen, daemon=True).start()
        while context.is_active():
            with self.broker.changed:
                queue = self._queue(name, context)
                mine &= {one.ack_id for one in queue.kept if one.ack_id}
                room = (first.max_outstanding_messages or 1000) - len(mine)
                taken = self.broker.take(queue, room, seconds)
                mine |= {one.ack_id for one in taken}
                if not taken:
                    self.broker.changed.wait(STREAM_SECONDS)
            if taken:
                yield types.StreamingPullResponse(received_messages=taken)

    def Acknowledge(self, request: types.AcknowledgeRequest, context: grpc.ServicerContext) -> Any:
        with self.broker.changed:
            self.broker.acknowledge(self._queue(request.subscription, context), list(request.ack_ids))
            return empty_pb2.Empty()

    def ModifyAckDeadline(
        self, request: types.ModifyAckDeadlineRequest, context: grpc.ServicerContext
    ) -> Any:
        with self.broker.changed:
            ids = list(request.ack_ids)
            seconds = [request.ack_deadline_seconds] * len(ids)
            self.broker.modify(self._queue(request.subscription, context), ids, seconds)
            return empty_pb2.Empty()


REQUESTS: dict[str, dict[str, Any]] = {
    "google.pubsub.v1.Publisher": {
        "CreateTopic": types.Topic,
        "GetTopic": types.GetTopicRequest,
        "ListTopics": types.ListTopicsRequest,
        "DeleteTopic": types.DeleteTopicRequest,
        "Publish": types.PublishRequest,
    },
    "google.pubsub.v1.Subscriber": {
        "CreateSubscription": types.Subscription,
        "GetSubscription": types.GetSubscriptionRequest,
        "ListSubscriptions": types.ListSubscriptionsRequest,
        "DeleteSubscription": types.DeleteSubscriptionRequest,
        "Pull": types.PullRequest,
        "StreamingPull": types.StreamingPullRequest,
        "Acknowledge": types.AcknowledgeRequest,
        "ModifyAckDeadline": types.ModifyAckDeadlineRequest,
    },
}


def written(response: Any) -> bytes:
    if isinstance(response, empty_pb2.Empty):
        return response.SerializeToString()
    answer: bytes = type(response).serialize(response)
    return answer


def serve(port: int) -> None:
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=64),
        options=[("grpc.max_receive_message_length", REQUEST_BYTES)],
    )
    service = Service(Broker())
    for name, calls in REQUESTS.items():
        handlers = {}
        for call, request in calls.items():
            kind = grpc.stream_stream_rpc_method_handler if call == "StreamingPull" else None
            make = kind or grpc.unary_unary_rpc_method_handler
            handlers[call] = make(getattr(service, call), request.deserialize, written)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
