"""A queue of SQS, found by its URL, and what the errors of its client mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
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
from .port import BrokerLost, BrokerMisconfigured

if TYPE_CHECKING:
    from mypy_boto3_sqs.client import SQSClient

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


class Queue:
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
            if code_of(error) in _DENIED:
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
            code = code_of(error)
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


def code_of(error: ClientError) -> str:
    """Return the code by which SQS names an error."""
    return str(error.response.get("Error", {}).get("Code", ""))
