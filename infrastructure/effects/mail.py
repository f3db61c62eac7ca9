"""Mail: messages that are the same with every try, and the server that takes them."""

from __future__ import annotations

import ipaddress
import os
import smtplib
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from ...projections.consumer import Rejected
from ..settings import SMTP_URL, SettingsError

FORM = "smtp://user:password@mail.example.com:587?from=shop@example.com"
PERMANENT = 500
"""From this code on a server's answer is final (RFC 5321, 4.2.1)."""


class MailRefused(Rejected):
    """The server has refused a mail for good, or some of its recipients."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where mail goes: `smtp:` turns to TLS where the server offers it, `smtps:` speaks it from the beginning.

    `sender` is who writes mails that name nobody. A password is sent over TLS only, but to this machine.
    """

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sender: str | None = None

    @classmethod
    def from_env(cls) -> Self:
        """Read ONEFOLD_SMTP_URL; raises `SettingsError`, without the value, which may hold a password."""
        text = os.environ.get(SMTP_URL, "").strip()
        if not text:
            raise SettingsError(
                f"{SMTP_URL} must name the server that takes mails; it is not set. Set it, such as {FORM}"
            )
        return cls.from_url(text)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read a URL such as `smtp://user:password@host:587?from=shop@example.com`; raises `SettingsError`."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        except ValueError:
            raise SettingsError(
                f"{SMTP_URL} must look like {FORM}; its value cannot be read as a URL. Correct it"
            ) from None
        tls = parts.scheme == "smtps"
        if parts.scheme not in ("smtp", "smtps"):
            raise SettingsError(
                f"{SMTP_URL} must look like {FORM}; its scheme is {parts.scheme!r}. Use smtp or smtps"
            )
        if not host:
            raise SettingsError(f"{SMTP_URL} must look like {FORM}; it names no host. Add one")
        sender = options.pop("from", None)
        if options or parts.path.strip("/") or parts.fragment:
            found = min(options, default=parts.path or parts.fragment)
            raise SettingsError(
                f"{SMTP_URL} must look like {FORM}; {found!r} in it has no meaning. Remove it"
            )
        return cls(
            host,
            port or (465 if tls else 587 if parts.username else 25),
            tls,
            None if parts.username is None else unquote(parts.username),
            None if parts.password is None else unquote(parts.password),
            sender,
        )

    def send(self, message: EmailMessage, timeout: float) -> None:
        """Send a message to those in its To, Cc and Bcc; `timeout` is seconds of silence.

        Raises `MailRefused` for what the server refuses for good, also where it has taken the message for some of
        the recipients, and `smtplib.SMTPException` or `OSError` for what may go well another time.
        """
        context = ssl.create_default_context()
        try:
            with self._connection(timeout, context) as client:
                self._secure(client, context)
                refused = client.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            if all(code >= PERMANENT for code, _ in error.recipients.values()):
                raise MailRefused(_words("all recipients", error.recipients)) from error
            raise
        except (smtplib.SMTPSenderRefused, smtplib.SMTPDataError) as error:
            if error.smtp_code >= PERMANENT:
                raise MailRefused(
                    f"expected {self.host} to take the mail, found: {error.smtp_code} {_text(error.smtp_error)}; mend "
                    "the mail, and retry it"
                ) from error
            raise
        if refused:
            raise MailRefused(_words("a part of the recipients, the others have it,", refused))

    @contextmanager
    def _connection(self, timeout: float, context: ssl.SSLContext) -> Iterator[smtplib.SMTP]:
        if self.tls:
            client: smtplib.SMTP = smtplib.SMTP_SSL(self.host, self.port, timeout=timeout, context=context)
        else:
            client = smtplib.SMTP(self.host, self.port, timeout=timeout)
        try:
            yield client
        finally:
            # What the server says at the end changes nothing about the mail, which it has taken or not.
            with suppress(smtplib.SMTPException, OSError):
                client.quit()
            client.close()

    def _secure(self, client: smtplib.SMTP, context: ssl.SSLContext) -> None:
        client.ehlo()
        if not self.tls and client.has_extn("starttls"):
            if _is_local(self.host):
                # Nobody is in between, and no certificate is made for this name.
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            client.starttls(context=context)
            client.ehlo()
        elif not self.tls and self.password is not None and not _is_local(self.host):
            raise SettingsError(
                f"{SMTP_URL} holds a password, which is sent over TLS only; {self.host} offers none. Use smtps:, or "
                "a server with STARTTLS"
            )
        if self.user is not None:
            client.login(self.user, self.password or "")


def compose(
    *,
    to: str | Sequence[str],
    subject: str,
    text: str,
    html: str | None = None,
    sender: str | None = None,
    cc: str | Sequence[str] = (),
    bcc: str | Sequence[str] = (),
    reply_to: str | None = None,
) -> EmailMessage:
    """Return a message of these parts."""
    message = EmailMessage()
    if sender is not None:
        message["From"] = sender
    for name, addresses in (("To", to), ("Cc", cc), ("Bcc", bcc)):
        if addresses:
            message[name] = addresses if isinstance(addresses, str) else ", ".join(addresses)
    if reply_to is not None:
        message["Reply-To"] = reply_to
    message["Subject"] = subject
    message.set_content(text)
    if html is not None:
        message.add_alternative(html, subtype="html")
    return message


def settle(message: EmailMessage, key: str, at: datetime, sender: str | None) -> str:
    """Give a message what makes it the same with every try, and return its Message-ID.

    The identity is the key at the sender's domain, the date that of the task, and boundaries between its parts come
    from the key too. Raises `SettingsError` for a message that says nowhere who sends it.
    """
    if message["From"] is None:
        if sender is None:
            raise SettingsError(
                f"{SMTP_URL} must say who sends mails that name no sender; it does not. Add ?from=shop@example.com, "
                "or give sender="
            )
        message["From"] = sender
    domain = parseaddr(str(message["From"]))[1].rpartition("@")[2] or "localhost"
    if message["Message-ID"] is None:
        message["Message-ID"] = f"<{key}@{domain}>"
    if message["Date"] is None:
        message["Date"] = format_datetime(at)
    number = 0
    for part in message.walk():
        if part.is_multipart():
            part.set_boundary(f"=_{key}_{number}")
            number += 1
    return str(message["Message-ID"])


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _words(whom: str, refused: dict[str, tuple[int, bytes]]) -> str:
    found = ", ".join(f"{address} ({code} {_text(why)})" for address, (code, why) in refused.items())
    return (
        f"expected the server to take every recipient, found {whom} refused: {found}; correct the addresses"
    )


def _text(answer: bytes | str) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
