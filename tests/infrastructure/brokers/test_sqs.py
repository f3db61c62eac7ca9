"""SQS, standard and FIFO (C62), against moto's server.

Where moto 5.2 is not like SQS, and what is done about it here:

- it forgets the deduplication id of a message together with the message, where SQS remembers it for five minutes: no
  test relies on what is deduplicated after a deletion, and no consumer does, whose identity is the business key;
- when the leases of several messages of a group end at the same moment, it delivers the last of them first: the tests
  of order give messages back, and consumers have their own guard of the sequence;
- any receipt ever given deletes a message and changes its visibility, where SQS takes the latest one only;
- the twelve hours of a visibility timeout count from when the message was sent, where SQS counts from the receive, and
  one message beyond them makes it refuse a whole batch: the adapter takes that for the end of all leases in the batch;
- it cannot move messages back from a dead-letter queue: the test of redrive copies them, as SQS does, with a new id.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import boto3
import pytest

from onefold.infrastructure.brokers import (
    BadBrokerURL,
    BrokerLost,
    BrokerMisconfigured,
    Delivery,
    Outgoing,
    Publisher,
    Subscription,
    publisher,
    subscribe,
)
from onefold.infrastructure.brokers.envelope import read

REGION = "eu-central-1"
FIFO = {"FifoQueue": "true"}


class Queue:
    """A queue of a test's own, what was opened of it, and moto's own client."""

    def __init__(self, client: Any, endpoint: str, name: str, settings: Mapping[str, str]) -> None:
        self.client = client
        self.endpoint = endpoint
        self.name = name
        self.where: str = client.create_queue(QueueName=name, Attributes=settings)["QueueUrl"]
        self.opened: list[Subscription | Publisher] = []

    def url(self, **options: Any) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"sqs://{self.name}?region={REGION}&endpoint={quote(self.endpoint)}{more}"

    def subscribe(self, **options: Any) -> Any:
        opened = subscribe(self.url(**options), "test")
        self.opened.append(opened)
        return opened

    def publisher(self) -> Any:
        opened = publisher(self.url())
        self.opened.append(opened)
        return opened

    def publish(self, *messages: Outgoing) -> None:
        self.publisher().publish(messages)

    @property
    def arn(self) -> str:
        told = self.client.get_queue_attributes(QueueUrl=self.where, AttributeNames=["QueueArn"])
        arn: str = told["Attributes"]["QueueArn"]
        return arn


@pytest.fixture
def make(sqs_endpoint: str, unique_name: Callable[[], str]) -> Iterator[Callable[..., Queue]]:
    client = boto3.client("sqs", region_name=REGION, endpoint_url=sqs_endpoint)
    made: list[Queue] = []

    def new(settings: Mapping[str, str] | None = None) -> Queue:
        settings = settings or {}
        name = unique_name() + (".fifo" if "FifoQueue" in settings else "")
        made.append(Queue(client, sqs_endpoint, name, settings))
        return made[-1]

    yield new
    for queue in made:
        for opened in queue.opened:
            opened.close()
        client.delete_queue(QueueUrl=queue.where)
    client.close()


def numbered(*numbers: int, key: str | None = "k") -> list[Outgoing]:
    return [
        Outgoing(str(number).encode(), {"ce-id": str(number), "ce-source": "/test"}, key)
        for number in numbers
    ]


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Receiving


def test_a_receive_is_filled_up_by_several_calls(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.publish(*numbered(*range(25)))
    subscription = queue.subscribe()
    assert len(subscription.receive(23, 1)) == 23
    assert len(subscription.receive(23, 0)) == 2


def test_every_kind_of_attribute_becomes_a_header_of_text(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.client.send_message(
        QueueUrl=queue.where,
        MessageBody="{}",
        MessageAttributes={
            "Text": {"DataType": "String", "StringValue": "é"},
            "number": {"DataType": "Number", "StringValue": "24.90"},
            "own": {"DataType": "String.kind", "StringValue": "x"},
            "binary": {"DataType": "Binary", "BinaryValue": "é".encode()},
            "raw": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
        },
    )
    [found] = queue.subscribe().receive(1, 1)
    assert found.headers == {"text": "é", "number": "24.90", "own": "x", "binary": "é", "raw": "/wA="}


def test_a_delivery_tells_what_sqs_knows_of_it(make: Callable[..., Queue]) -> None:
    queue = make(FIFO)
    before = datetime.now(UTC)
    queue.publish(*numbered(1, key="order/1"))
    subscription = queue.subscribe()
    [first] = subscription.receive(1, 1)
    assert first.key == "order/1"
    assert first.attempt == 1
    assert abs(first.published_at - before) < timedelta(seconds=20)
    assert first.place.startswith(f"{queue.name}@")
    subscription.give_back([first])
    [second] = subscription.receive(1, 1)
    assert (second.attempt, second.place) == (2, first.place)


@pytest.mark.parametrize("text", ["no base64", "-", "aGk="])
def test_what_others_sent_is_not_decoded(make: Callable[..., Queue], text: str) -> None:
    queue = make()
    queue.client.send_message(
        QueueUrl=queue.where,
        MessageBody=text,
        MessageAttributes={"onefold-headers": {"DataType": "String", "StringValue": "[no JSON"}},
    )
    [found] = queue.subscribe().receive(1, 1)
    assert found.body == text.encode()
    assert found.headers == {"onefold-headers": "[no JSON"}


def test_a_body_that_says_it_is_base64_and_is_not_stays_as_it_is(make: Callable[..., Queue]) -> None:
    queue = make()
    attributes = {"onefold-encoding": {"DataType": "String", "StringValue": "base64"}}
    queue.client.send_message(QueueUrl=queue.where, MessageBody="{é}", MessageAttributes=attributes)
    [found] = queue.subscribe().receive(1, 1)
    assert found.body == "{é}".encode()
    assert found.headers == {"onefold-encoding": "base64"}


def test_a_long_poll_ends_when_a_message_comes(make: Callable[..., Queue]) -> None:
    queue = make()
    subscription = queue.subscribe(wait=5)
    out = queue.publisher()
    timer = threading.Timer(0.5, out.publish, [numbered(1)])
    timer.start()
    began = time.monotonic()
    assert len(subscription.receive(10, 5.0)) == 1
    assert time.monotonic() - began < 4
    timer.join()


def test_an_empty_queue_is_not_asked_in_a_loop(make: Callable[..., Queue]) -> None:
    subscription = make().subscribe()
    calls: list[str] = []
    subscription._client.meta.events.register(
        "before-call.sqs.*", lambda model, **_: calls.append(model.name)
    )
    began = time.monotonic()
    assert subscription.receive(10, 0.4) == []
    assert time.monotonic() - began >= 0.4
    assert subscription.receive(0, 0.2) == []
    assert calls == ["ReceiveMessage"]


def test_a_queue_is_found_by_its_url(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.publish(*numbered(1))
    with_region = subscribe(f"sqs:?url={quote(queue.where, safe='')}&region={REGION}", "test")
    assert bodies(with_region.receive(1, 1)) == [b"1"]
    with_region.close()


# Order


def test_a_group_keeps_its_order_when_one_message_fails(make: Callable[..., Queue]) -> None:
    """C62. The failed message is held while later ones of the same receive are done; nothing passes it."""
    queue = make(FIFO)
    queue.publish(*numbered(1, 2, 3, 4))
    subscription = queue.subscribe()
    first, second, third = subscription.receive(3, 1)
    assert bodies([first, second, third]) == [b"1", b"2", b"3"]
    subscription.acknowledge([second])
    assert subscription.receive(10, 0) == []
    subscription.give_back([first, third])
    again = subscription.receive(10, 1)
    assert bodies(again) == [b"1", b"3", b"4"]
    subscription.acknowledge(again)


def test_groups_do_not_wait_for_each_other(make: Callable[..., Queue]) -> None:
    queue = make(FIFO)
    queue.publish(*numbered(1, 2, key="a"), *numbered(3, 4, key="b"))
    subscription = queue.subscribe()
    taken = subscription.receive(1, 1)
    assert bodies(taken) == [b"1"]
    assert bodies(subscription.receive(10, 1)) == [b"3", b"4"]


def test_a_partial_failure_does_not_change_the_order_of_a_group(make: Callable[..., Queue]) -> None:
    queue = make(FIFO)
    out = queue.publisher()
    calls = failing(
        out._queue.client, "SendMessageBatch", fails=lambda call, entry: call < 2 and entry == "0"
    )
    out.publish(
        [*numbered(1, key="a"), *numbered(10, key="b"), *numbered(2, 3, key="a"), *numbered(11, key="b")]
    )
    assert len(calls) >= 4
    found = queue.subscribe().receive(10, 1)
    assert [body for body in bodies(found) if len(body) == 1] == [b"1", b"2", b"3"]
    assert [body for body in bodies(found) if len(body) == 2] == [b"10", b"11"]


def test_what_is_never_taken_is_a_lost_broker(make: Callable[..., Queue]) -> None:
    queue = make(FIFO)
    out = queue.publisher()
    failing(out._queue.client, "SendMessageBatch", fails=lambda _, entry: entry == "0")
    with pytest.raises(BrokerLost, match="to take messages"):
        out.publish(numbered(1, 2))
    assert [delivery for delivery in queue.subscribe().receive(10, 0) if delivery.key == "k"] == []


def failing(client: Any, operation: str, fails: Callable[[int, str], bool]) -> list[list[str]]:
    """Have entries of a batch not reach the server, and reported as failed by its fault; return the calls."""
    calls: list[list[str]] = []
    lost: list[str] = []

    def before(params: dict[str, Any], **_: Any) -> None:
        ids = [entry["Id"] for entry in params["Entries"]]
        lost[:] = [entry for entry in ids if fails(len(calls), entry)]
        calls.append(ids)
        # An empty batch is refused.
        params["Entries"] = [entry for entry in params["Entries"] if entry["Id"] not in lost] or [
            {**params["Entries"][0], **replacement}
        ]

    def after(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Failed"] = [{"Id": entry, "SenderFault": False, "Code": "InternalError"} for entry in lost]

    replacement = (
        {"ReceiptHandle": "none"} if operation == "DeleteMessageBatch" else {"MessageGroupId": "lost"}
    )
    client.meta.events.register(f"provide-client-params.sqs.{operation}", before)
    client.meta.events.register(f"after-call.sqs.{operation}", after)
    return calls


# Acknowledging and leases


def test_each_message_of_a_batch_is_acknowledged_for_itself(make: Callable[..., Queue]) -> None:
    """C62. A receipt that the queue does not know does not keep the others."""
    queue = make()
    queue.publish(*numbered(*range(12)))
    subscription = queue.subscribe(visibility=1)
    found = subscription.receive(12, 1)
    unknown = Delivery(b"", {}, "", handle=type(found[0].handle)("unknown", 0.0, 0.0))
    subscription.acknowledge([*found[:6], unknown, found[0], *found[6:]])
    assert subscription.backlog() == 0


def test_what_could_not_be_deleted_is_deleted_again(
    make: Callable[..., Queue], caplog: pytest.LogCaptureFixture
) -> None:
    queue = make()
    queue.publish(*numbered(1, 2))
    subscription = queue.subscribe()
    calls = failing(
        subscription._client, "DeleteMessageBatch", fails=lambda call, entry: call < 2 and entry == "0"
    )
    subscription.acknowledge(subscription.receive(2, 1))
    assert [len(call) for call in calls] == [2, 1, 1]
    assert subscription.backlog() == 0
    assert warnings(caplog) == []


def test_what_cannot_be_deleted_is_left_and_named(
    make: Callable[..., Queue], caplog: pytest.LogCaptureFixture
) -> None:
    queue = make()
    queue.publish(*numbered(1, 2))
    subscription = queue.subscribe()
    failing(subscription._client, "DeleteMessageBatch", fails=lambda _, entry: entry == "0")
    subscription.acknowledge(subscription.receive(2, 1))
    assert subscription.backlog() == 1
    assert "1 messages are done but could not be deleted" in warnings(caplog)[0]


def test_the_lease_is_the_queue_s_or_the_url_s(make: Callable[..., Queue]) -> None:
    queue = make({"VisibilityTimeout": "77"})
    assert queue.subscribe().lease == 77
    assert queue.subscribe(visibility=5).lease == 5
    assert make({"VisibilityTimeout": "0"}).subscribe().lease == 30


def test_an_extended_lease_keeps_a_message_longer(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.publish(*numbered(1))
    subscription = queue.subscribe(visibility=2)
    held = subscription.receive(1, 1)
    for _ in range(4):
        time.sleep(0.7)
        subscription.extend(held)
        assert subscription.receive(1, 0) == []


def test_extending_what_is_gone_is_no_error(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.publish(*numbered(1, 2))
    subscription = queue.subscribe()
    gone, here = subscription.receive(2, 1)
    queue.client.delete_message(QueueUrl=queue.where, ReceiptHandle=gone.handle.handle)
    subscription.extend([gone, here])
    subscription.extend([gone, here])
    subscription.give_back([gone, here])
    assert bodies(subscription.receive(2, 1)) == [here.body]


def test_a_message_is_extended_for_twelve_hours_and_then_let_go(
    make: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make()
    queue.publish(*numbered(1))
    subscription = queue.subscribe(visibility=60)
    held = subscription.receive(1, 1)
    asked: list[int] = []
    subscription._client.meta.events.register(
        "provide-client-params.sqs.ChangeMessageVisibilityBatch",
        lambda params, **_: asked.extend(entry["VisibilityTimeout"] for entry in params["Entries"]),
    )
    received = held[0].handle.received_at
    for hours, seconds in ((0, 100.0), (12, -200.0), (12, -40.0), (12, -20.0), (12, 5.0)):
        now = received + hours * 3600 + seconds
        monkeypatch.setattr("onefold.infrastructure.brokers.sqs.monotonic", lambda now=now: now)
        subscription.extend(held)
    assert asked == [60, 60, 40, 20]
    assert len(warnings(caplog)) == 1
    assert "12 hours" in warnings(caplog)[0]
    monkeypatch.undo()


def test_a_delay_ends_within_twelve_hours_of_the_receive(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.publish(*numbered(1))
    subscription = queue.subscribe()
    held = subscription.receive(1, 1)
    subscription.give_back(held, delay=10**6)
    assert subscription.receive(1, 0) == []


def test_a_refused_batch_of_extensions_is_the_end_of_its_leases(
    make: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moto counts the twelve hours from when a message was sent, and refuses the batch for one that is beyond them."""
    queue = make()
    queue.publish(*numbered(1))
    subscription = queue.subscribe(visibility=43200)
    held = subscription.receive(1, 1)
    time.sleep(1.1)
    subscription.extend(held)
    queue.client.change_message_visibility(
        QueueUrl=queue.where, ReceiptHandle=held[0].handle.handle, VisibilityTimeout=0
    )
    monkeypatch.setattr(subscription, "_visibility", 60)
    assert bodies(subscription.receive(1, 1)) == [b"1"]


def test_closing_makes_visible_what_is_held(make: Callable[..., Queue]) -> None:
    queue = make(FIFO)
    queue.publish(*numbered(1, 2, 3))
    first = queue.subscribe(visibility=600)
    first.acknowledge(first.receive(3, 1)[:1])
    first.close()
    first.close()
    assert bodies(queue.subscribe().receive(3, 1)) == [b"2", b"3"]
    with pytest.raises(BrokerLost, match="closed"):
        first.acknowledge([])


# Dead-letter queues


@pytest.mark.parametrize(("most", "level"), [(4, logging.WARNING), (5, logging.INFO)])
def test_a_redrive_policy_is_named_at_the_start(
    make: Callable[..., Queue], caplog: pytest.LogCaptureFixture, most: int, level: int
) -> None:
    policy = {"deadLetterTargetArn": make().arn, "maxReceiveCount": most}
    queue = make({"RedrivePolicy": json.dumps(policy)})
    with caplog.at_level(logging.INFO, "onefold"):
        queue.subscribe()
    [record] = [record for record in caplog.records if "dead-letter queue" in record.getMessage()]
    assert record.levelno == level
    assert f"after {most} receives" in record.getMessage()


def test_a_redriven_message_has_another_id_and_the_same_business_key(make: Callable[..., Queue]) -> None:
    """C62, C08. Moved to the dead-letter queue and back, a message is a new one to SQS, and the same to a consumer."""
    dead = make()
    queue = make({"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 1})})
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "broker-1",
        "ce-source": "/bank",
        "ce-type": "account.debited",
        "ce-idempotencykey": "transfer-7",
        "content-type": "application/json",
    }
    queue.publish(Outgoing(b'{"amount": 10}', headers))
    subscription = queue.subscribe()
    [first] = subscription.receive(1, 1)
    subscription.give_back([first])
    assert subscription.receive(1, 0.2) == []
    [buried] = dead.subscribe().receive(1, 1)
    queue.client.send_message(
        QueueUrl=queue.where,
        MessageBody=buried.body.decode(),
        MessageAttributes={
            name: {"DataType": "String", "StringValue": value} for name, value in buried.headers.items()
        },
    )
    [again] = subscription.receive(1, 1)
    assert again.place != first.place
    assert read(again) == read(first)
    assert read(again).extensions["idempotencykey"] == "transfer-7"


# Publishing


def test_headers_that_sqs_does_not_take_are_carried_all_the_same(make: Callable[..., Queue]) -> None:
    queue = make()
    headers = {
        **{f"h{number}": str(number) for number in range(12)},
        "empty": "",
        "with space": "x",
        "aws.trace": "y",
        "onefold-headers": "z",
        "nul": "a\0b",
    }
    queue.publish(Outgoing(b"{}", headers))
    [found] = queue.subscribe().receive(1, 1)
    assert found.headers == headers


def test_ten_headers_are_ten_attributes(make: Callable[..., Queue]) -> None:
    queue = make()
    headers = {f"h{number}": str(number) for number in range(10)}
    queue.publish(Outgoing(b"{}", headers), Outgoing(b"\xff", headers))
    found = queue.client.receive_message(
        QueueUrl=queue.where, MaxNumberOfMessages=2, MessageAttributeNames=["All"]
    )["Messages"]
    plain, encoded = (set(message["MessageAttributes"]) for message in found)
    assert plain == set(headers)
    assert len(encoded) == 10
    assert {"onefold-headers", "onefold-encoding"} <= encoded


def test_large_messages_are_sent_in_calls_of_their_own(make: Callable[..., Queue]) -> None:
    queue = make()
    out = queue.publisher()
    calls = failing(out._queue.client, "SendMessageBatch", fails=lambda *_: False)
    sizes = [200_000, 50_000, 50_000, 300_000, 10]
    out.publish([Outgoing(b"x" * size) for size in sizes])
    assert sorted(calls) == [["0", "1"], ["2"], ["3"], ["4"]]
    assert sorted(len(found.body) for found in queue.subscribe().receive(10, 1)) == sorted(sizes)


@pytest.mark.parametrize("settings", [{}, FIFO])
def test_a_message_that_is_too_large_is_refused_and_what_follows_it_in_its_key_waits(
    make: Callable[..., Queue], settings: dict[str, str]
) -> None:
    queue = make({"MaximumMessageSize": "1024", **settings})
    out = queue.publisher()
    keys = "kkkl"
    bodies = [b"1", b"x" * 2000, b"3", b"4"]
    refused = out.publish([Outgoing(body, {}, key) for body, key in zip(bodies, keys, strict=True)])
    assert list(refused) == [1]
    assert "up to 1,024 bytes" in refused[1]
    assert sorted(found.body for found in queue.subscribe().receive(10, 1)) == [b"1", b"4"]


def test_a_message_that_sqs_itself_refuses_is_told_with_its_reason(make: Callable[..., Queue]) -> None:
    queue = make(FIFO)
    out = queue.publisher()
    entries = out._queue.client.send_message_batch

    def refusing(**call: Any) -> Any:
        bad = [each for each in call["Entries"] if each["MessageBody"] == "2"]
        good = [each for each in call["Entries"] if each["MessageBody"] != "2"]
        answer: Any = entries(QueueUrl=call["QueueUrl"], Entries=good) if good else {}
        failed = [
            {"Id": each["Id"], "SenderFault": True, "Code": "InvalidMessageContents", "Message": "no"}
            for each in bad
        ]
        return {**answer, "Failed": failed}

    out._queue.client.send_message_batch = refusing
    refused = out.publish([Outgoing(b"%d" % n, {"n": f"{n}"}, "k" if n < 4 else "l") for n in range(1, 6)])
    assert list(refused) == [1]
    assert "InvalidMessageContents: no" in refused[1]
    assert sorted(found.body for found in queue.subscribe().receive(10, 1)) == [b"1", b"4", b"5"]


def test_a_fifo_queue_takes_an_event_once_while_it_is_there(make: Callable[..., Queue]) -> None:
    """Moto forgets the event with the message. SQS remembers it for five minutes, which is no promise to rely on."""
    queue = make(FIFO)
    structured = Outgoing(b'{"id": "7"}', {"content-type": "application/cloudevents+json"}, "k")
    queue.publish(*numbered(1), structured)
    queue.publish(*numbered(1), structured)
    assert len(queue.subscribe().receive(10, 1)) == 2


def test_equal_bodies_without_identity_are_two_messages(make: Callable[..., Queue]) -> None:
    """C10, also where the queue itself deduplicates by content."""
    for settings in (FIFO, {**FIFO, "ContentBasedDeduplication": "true"}):
        queue = make(settings)
        queue.publish(Outgoing(b"debit 10", {}, "k"), Outgoing(b"debit 10", {}, "k"))
        queue.publish(Outgoing(b"debit 10", {"ce-id": "1"}, "k"), Outgoing(b"debit 10", {"ce-id": "1"}, "k"))
        assert len(queue.subscribe().receive(10, 1)) == 4


def test_the_same_id_from_two_sources_is_two_messages(make: Callable[..., Queue]) -> None:
    queue = make(FIFO)
    queue.publish(*(Outgoing(b"x", {"ce_id": "1", "ce_source": source}, "k") for source in ("/a", "/b")))
    assert len(queue.subscribe().receive(10, 1)) == 2


def test_any_key_is_a_group(make: Callable[..., Queue]) -> None:
    queue = make(FIFO)
    keys = ["order/1", "Łódź", "with space", "x" * 129, None]
    for key in keys:
        queue.publish(Outgoing(b"1", {}, key), Outgoing(b"2", {}, key))
    found = queue.subscribe().receive(10, 1)
    groups = [delivery.key for delivery in found]
    assert groups[0] == "order/1"
    assert len(set(groups)) == 6
    assert [groups[at] == groups[at + 1] for at in range(0, 10, 2)] == [True, True, True, True, False]


# What can be asked


def test_the_backlog_is_asked_at_most_once_a_second(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.publish(*numbered(1, 2, 3))
    subscription = queue.subscribe()
    subscription.receive(1, 1)
    calls: list[int] = []
    subscription._client.meta.events.register(
        "before-call.sqs.GetQueueAttributes", lambda **_: calls.append(1)
    )
    assert {subscription.backlog() for _ in range(5)} == {3}
    assert len(calls) == 1
    time.sleep(1.05)
    assert subscription.backlog() == 3
    assert len(calls) == 2


def test_retention_is_the_queue_s(make: Callable[..., Queue]) -> None:
    assert make().subscribe().retention() == 4 * 86400
    assert make({"MessageRetentionPeriod": "3600"}).subscribe().retention() == 3600


# What goes wrong


Answer = tuple[int, dict[str, Any]]
FOUND: Answer = (200, {"QueueUrl": "http://127.0.0.1/1/q"})


def refused(code: str, status: int = 400) -> Answer:
    return status, {"__type": f"com.amazonaws.sqs#{code}", "message": "no"}


@contextmanager
def answering(answers: Mapping[str, Answer]) -> Iterator[str]:
    """Serve fixed answers by operation, such as moto never gives, nothing for others; yield the URL of a queue."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            operation = self.headers["X-Amz-Target"].partition(".")[2]
            status, content = answers.get(operation, (200, {}))
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"sqs://q.fifo?region={REGION}&endpoint=http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AccessDenied", 403, BrokerMisconfigured),
        ("InvalidClientTokenId", 403, BrokerMisconfigured),
        ("QueueDoesNotExist", 400, BrokerMisconfigured),
        ("ExpiredToken", 403, BrokerLost),
        ("SomethingNew", 400, BrokerLost),
    ],
)
def test_a_refusal_is_told_by_whether_it_will_last(code: str, status: int, kind: type[Exception]) -> None:
    answers = {"GetQueueUrl": FOUND, "ReceiveMessage": refused(code, status)}
    with answering(answers) as url:
        subscription = subscribe(url, "test")
        with pytest.raises(kind, match=r"SQS queue q\.fifo"):
            subscription.receive(1, 0)
        subscription.close()
    with answering({"GetQueueUrl": refused(code, status)}) as url, pytest.raises(kind):
        subscribe(url, "test")


@pytest.mark.usefixtures("credentials")
def test_who_may_not_ask_for_attributes_consumes_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    with answering({"GetQueueUrl": FOUND, "GetQueueAttributes": refused("AccessDenied", 403)}) as url:
        subscription = subscribe(url, "test")
        assert (subscription.lease, subscription.retention(), subscription.backlog()) == (30, None, None)
        assert "allow sqs:GetQueueAttributes" in warnings(caplog)[0]
        assert subscription.receive(1, 0) == []
        subscription.close()


@pytest.mark.usefixtures("credentials")
def test_too_many_messages_in_flight_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with answering({"GetQueueUrl": FOUND, "ReceiveMessage": refused("OverLimit", 403)}) as url:
        subscription = subscribe(url, "test")
        assert subscription.receive(1, 0.1) == []
        assert "more messages are held than SQS allows" in warnings(caplog)[0]
        subscription.close()


@pytest.mark.usefixtures("credentials")
def test_what_was_received_before_a_failure_is_handed_out() -> None:
    messages = [{"MessageId": str(number), "ReceiptHandle": str(number), "Body": "x"} for number in range(10)]
    answers = {"GetQueueUrl": FOUND, "ReceiveMessage": (200, {"Messages": messages})}
    with answering(answers) as url:
        subscription = subscribe(url, "test")
        calls: list[int] = []

        def second(**_: Any) -> None:
            calls.append(1)
            if len(calls) == 2:
                answers["ReceiveMessage"] = refused("SomethingNew")

        subscription._client.meta.events.register("before-call.sqs.ReceiveMessage", second)  # type: ignore[attr-defined]
        assert len(subscription.receive(30, 1)) == 10
        with pytest.raises(BrokerLost):
            subscription.receive(30, 1)
        subscription.close()


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(BrokerMisconfigured, match="set AWS_ACCESS_KEY_ID"):
        subscribe(f"sqs://q?region={REGION}&endpoint=http://127.0.0.1:1", "test")


def test_a_missing_region_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(BrokerMisconfigured, match="add region="):
        subscribe("sqs://q", "test")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqs:", "the name of a queue"),
        ("sqs://q/path?region=r", "the name of a queue"),
        ("sqs://key:secret@q?region=r", "the name of a queue"),
        ("sqs://q?url=http://127.0.0.1/1/q", "the name of a queue"),
        ("sqs:?url=q", "the URL of a queue"),
        ("sqs://q?region=r&wait=21", "from 0 to 20 for option wait"),
        ("sqs://q?region=r&wait=0.5", "from 0 to 20 for option wait"),
        ("sqs://q?region=r&visibility=0", "at least 1 for option visibility"),
        ("sqs://q?region=r&visibility=43201", "from 1 to 43200 for option visibility"),
        (
            "sqs://q?region=r&delay=1",
            r"no option 'delay' \(known: account, endpoint, region, url, visibility, wait\)",
        ),
        ("sqs://q?region=no%20region", "a region and an endpoint"),
        ("sqs://q?region=r&endpoint=nowhere", "a region and an endpoint"),
    ],
)
def test_a_bad_url_says_what_was_expected(url: str, expected: str) -> None:
    for use in (lambda: subscribe(url, "test"), lambda: publisher(url)):
        with pytest.raises(BadBrokerURL, match=expected) as caught:
            use()
        assert "secret" not in str(caught.value)
