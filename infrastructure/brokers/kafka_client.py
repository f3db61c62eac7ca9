"""What the consumer and the producer of Kafka share: how a client is made, and what its errors mean."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from ...domain.errors import OnefoldError
from .port import BadBrokerURL, BrokerLost, BrokerMisconfigured

START_SECONDS: Final = 10.0
"""How long the cluster may take to answer at the start."""
WRONG: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._INVALID_ARG,
    }
)
"""Codes of what will not change by itself."""
PASSING: Final = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
    }
)
"""Codes of what the client copes with by itself, or what shows in another way."""
_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Who has a client, and takes its reports."""

    @property
    def failure(self) -> OnefoldError | None:
        """What the client reported that is the end of it, None if it goes on."""
        ...


class _Log:
    def log(self, level: int, message: str, *arguments: object) -> None:
        """Take a line that the client logs; it has one for every try to connect, which the errors here tell once."""
        _log.debug(message, *arguments)


CLIENT_LOG: Final[Any] = _Log()
"""Where clients log to."""


def text_of(error: object) -> str:
    """Return what an error of the client says."""
    if isinstance(error, BaseException) and error.args:
        error = error.args[0]
    return error.str() if isinstance(error, KafkaError) else str(error)


def made(kind: type[Any], settings: dict[str, Any]) -> Any:
    """Return a client with these settings; raises `BadBrokerURL` for those that librdkafka does not know."""
    try:
        return kind(settings, logger=CLIENT_LOG)
    except (KafkaException, ValueError, TypeError) as error:
        raise BadBrokerURL(
            f"expected option group, and settings of librdkafka, found: {text_of(error)}; correct the URL"
        ) from error


def require_topics(client: Consumer | Producer, servers: str, topics: Iterable[str], owner: Owner) -> None:
    """Raise `BrokerLost` if the cluster does not answer, `BrokerMisconfigured` if it has no such topic for us."""
    for topic in topics:
        try:
            found = client.list_topics(topic, timeout=START_SECONDS).topics[topic]
        except (KafkaException, RuntimeError) as error:
            # What the client has to say comes by a callback.
            client.poll(0)
            if owner.failure is not None:
                raise owner.failure from error
            raise lost(servers, error) from error
        if found.error is not None:
            raise BrokerMisconfigured(
                f"expected topic {topic} at kafka://{servers}, found: {found.error.str()}; "
                "create it, or correct the URL"
            )


def lost(servers: str, error: object) -> BrokerLost:
    """Return the error that says that the cluster does not answer."""
    return BrokerLost(
        f"expected kafka://{servers} to answer, found: {text_of(error)}; is a broker running there?"
    )
