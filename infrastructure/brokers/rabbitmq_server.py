"""The server of RabbitMQ: how it is reached, and how its errors are named."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator
from urllib.parse import SplitResult, unquote

import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from .options import Options
from .port import BrokerLost, BrokerMisconfigured
from .rabbitmq_queue import refused

# The client logs a lost connection as a dozen errors; where nobody asked for its log, ours are enough.
logging.getLogger("pika").addHandler(logging.NullHandler())

_PLAIN_PORT, _TLS_PORT = 5672, 5671


class RabbitServer:
    """Where the broker is, how it is reached, and how its errors are named."""

    def __init__(self, parts: SplitResult, options: Options) -> None:
        secure = parts.scheme == "amqps"
        heartbeat = options.number("heartbeat", 20, least=1)
        trusted = options.text("ca", "")
        try:
            port = parts.port or (_TLS_PORT if secure else _PLAIN_PORT)
        except ValueError as error:
            raise options.bad("a port from 1 to 65535") from error
        if not parts.hostname or parts.fragment or "/" in parts.path[1:]:
            raise options.bad("a host, and a virtual host with its / as %2F,")
        tls = None
        if secure:
            try:
                tls = pika.SSLOptions(ssl.create_default_context(cafile=trusted or None), parts.hostname)
            except OSError as error:
                raise options.bad(
                    f"a readable file of certificates for option ca ({error.strerror})"
                ) from error
        elif trusted:
            raise options.bad("option ca with amqps: only")
        self.shown = f"{parts.hostname}:{port}"
        self._parameters = pika.ConnectionParameters(
            host=parts.hostname,
            port=port,
            virtual_host=unquote(parts.path[1:]) or "/",
            credentials=pika.PlainCredentials(
                unquote(parts.username) if parts.username is not None else "guest",
                unquote(parts.password) if parts.password is not None else "guest",
                erase_on_connect=False,
            ),
            ssl_options=tls,
            heartbeat=int(heartbeat),
            socket_timeout=5,
            stack_timeout=10,
            blocked_connection_timeout=60,
            client_properties={"product": "onefold"},
        )

    @property
    def parameters(self) -> pika.ConnectionParameters:
        """How it is connected to."""
        return self._parameters

    def connect(self) -> pika.BlockingConnection:
        """Return a new connection; takes up to 10 seconds."""
        with self.connecting():
            return pika.BlockingConnection(self._parameters)

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """Turn what the client says of a connection that is not made into the errors of the port."""
        try:
            yield
        except (
            pika.exceptions.ProbableAuthenticationError,
            pika.exceptions.ProbableAccessDeniedError,
            pika.exceptions.AuthenticationError,
        ) as error:
            raise BrokerMisconfigured(
                f"expected {self.shown} to let the user in to the virtual host "
                f"{self._parameters.virtual_host!r}, found: {_words(error)}; check user, password and virtual host"
            ) from error
        except (pika.exceptions.AMQPError, AMQPConnectorException, OSError) as error:
            raise BrokerLost(
                f"expected RabbitMQ at {self.shown}, found: {_words(error)}; check host, port and the broker"
            ) from error

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn the client's errors into those of the port."""
        try:
            yield
        except pika.exceptions.ChannelClosedByBroker as error:
            raise refused(what, error) from error
        except (pika.exceptions.AMQPError, AMQPConnectorException, OSError) as error:
            raise BrokerLost(
                f"expected the connection to {self.shown} to stay, found it lost: {_words(error)}; connect again"
            ) from error


def _words(error: BaseException) -> str:
    return str(error) or repr(error)
