"""The world outside, as it sees effects: a server of payments that knows keys, and a server that takes mails."""

from __future__ import annotations

import email
import email.policy
import json
import threading
from collections import Counter
from collections.abc import Callable
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

Hook = Callable[[], object]


def pass_by() -> None: ...


class Payments:
    """Charges once per `Idempotency-Key`, and answers a repeat as it did the first time.

    `before` is called when a request is read, `between` when it is done and not answered yet.
    """

    def __init__(self) -> None:
        self.before: Hook = pass_by
        self.between: Hook = pass_by
        self.answer = 201
        self.charges: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self._lock = threading.Lock()
        payments = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                payments.before()
                key = self.headers.get("Idempotency-Key", "")
                with payments._lock:
                    payments.requests[key] += 1
                    payments.seen.append((self.command, self.path, dict(self.headers), body))
                    conflict = payments.charges.setdefault(key, body) != body
                payments.between()
                status = 422 if conflict else payments.answer
                if self.path == "/moved":
                    self.send_response(307)
                    self.send_header("Location", "/charges")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                answer = json.dumps({"charge": f"of {key}"}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Set-Cookie", "session=1")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_PUT(self) -> None:
                self.do_POST()

            def do_GET(self) -> None:
                payments.seen.append((self.command, self.path, dict(self.headers), b""))
                found = self.path.rpartition("/")[2] in {key.strip('"') for key in payments.charges}
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """The other side is killed on purpose."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class Mails:
    """Takes mails; `before` is called when the text of one has come, `between` when it is kept and not answered yet."""

    def __init__(self) -> None:
        self.before: Hook = pass_by
        self.between: Hook = pass_by
        self.refuse: dict[str, str] = {}
        self.taken: list[tuple[str, list[str], bytes]] = []
        mails = self

        class Handler:
            async def handle_RCPT(
                self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
            ) -> str:
                if address in mails.refuse:
                    return mails.refuse[address]
                envelope.rcpt_tos.append(address)
                return "250 OK"

            async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
                mails.before()
                content: Any = envelope.original_content
                mails.taken.append((str(envelope.mail_from), list(envelope.rcpt_tos), bytes(content)))
                mails.between()
                return mails.refuse.get("DATA", "250 OK")

            async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:
                return mails.refuse.get("QUIT", "221 Bye")

        self._controller = Controller(Handler(), hostname="127.0.0.1", port=_free_port())
        self._controller.start()
        self.url = f"smtp://127.0.0.1:{self._controller.port}?from=shop@example.com"

    @property
    def messages(self) -> list[EmailMessage]:
        return [
            email.message_from_bytes(content, policy=email.policy.default) for _, _, content in self.taken
        ]  # type: ignore[misc]

    @property
    def ids(self) -> Counter[str]:
        """How often each Message-ID has come."""
        return Counter(str(message["Message-ID"]) for message in self.messages)

    def close(self) -> None:
        self._controller.stop()


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
