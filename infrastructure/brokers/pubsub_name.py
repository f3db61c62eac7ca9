"""Names of Pub/Sub: a subscription or a topic, where it is served, and what the errors of its calls mean."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import SplitResult

import grpc
from google.api_core.exceptions import (
    FailedPrecondition,
    Forbidden,
    GoogleAPICallError,
    InvalidArgument,
    MethodNotImplemented,
    NotFound,
    Unauthenticated,
    from_grpc_error,
)
from google.auth.exceptions import GoogleAuthError, TransportError

from .options import Options
from .port import BrokerLost, BrokerMisconfigured

EMULATOR_HOST: Final = "PUBSUB_EMULATOR_HOST"

# It has no types of its own.
error_of: Callable[[grpc.RpcError], GoogleAPICallError] = from_grpc_error


class Name:
    """A subscription or a topic, and where it is served."""

    def __init__(self, parts: SplitResult, options: Options, kind: str) -> None:
        endpoint = options.text("endpoint", "")
        options.finish()
        self.kind = kind
        self.last = parts.path.removeprefix("/")
        if not re.fullmatch(r"[A-Za-z0-9.:-]+", parts.netloc) or not re.fullmatch(
            r"[A-Za-z][\w.~+%-]{2,254}", self.last, re.ASCII
        ):
            raise options.bad(f"a project and a {kind}")
        self.path = f"projects/{parts.netloc}/{kind}s/{self.last}"
        # An endpoint of Google's has a certificate and asks for credentials; any other is an emulator.
        google = re.fullmatch(r"(?:[a-z0-9-]+\.)*googleapis\.com(?::\d+)?", endpoint)
        self._host = endpoint if google else ""
        self._emulator = "" if google else endpoint or os.environ.get(EMULATOR_HOST, "")

    def __str__(self) -> str:
        return f"Pub/Sub {self.kind} {self.path}"

    def transport(self, kind: Any) -> Any:
        """Return a connection of this kind."""
        if self._emulator:
            channel = grpc.insecure_channel(
                self._emulator,
                options=[
                    ("grpc.max_send_message_length", -1),
                    ("grpc.max_receive_message_length", -1),
                    ("grpc.use_local_subchannel_pool", 1),
                ],
            )
            return kind(channel=channel)
        with self.asked():
            return kind(host=self._host) if self._host else kind()

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Turn what goes wrong at a call into an error of the port."""
        try:
            yield
        except (GoogleAPICallError, GoogleAuthError) as error:
            raise self.failure(error) from error

    def failure(self, error: GoogleAPICallError | GoogleAuthError) -> BrokerLost | BrokerMisconfigured:
        """Return the error of the port that says what happened."""
        if isinstance(error, NotFound):
            return BrokerMisconfigured(
                f"expected {self}, found none; create it, or correct the project or the name ({error})"
            )
        if isinstance(error, Forbidden | Unauthenticated):
            return BrokerMisconfigured(
                f"expected to be allowed to use {self}, found: {error}; grant the service account "
                f"roles/pubsub.{'subscriber' if self.kind == 'subscription' else 'publisher'}"
            )
        if isinstance(error, InvalidArgument | FailedPrecondition | MethodNotImplemented):
            return BrokerMisconfigured(f"expected {self} to take a request, found: {error}")
        if isinstance(error, GoogleAuthError) and not (
            isinstance(error, TransportError) or getattr(error, "retryable", False)
        ):
            return BrokerMisconfigured(
                f"expected credentials for {self}, found: {error}; set GOOGLE_APPLICATION_CREDENTIALS, or run where "
                "there is a service account"
            )
        return BrokerLost(f"expected to reach {self}, found: {error}; check the network and endpoint=")
