"""Mails of a call."""

from __future__ import annotations

import asyncio
import smtplib
import time
from email.message import EmailMessage

import pytest

from onefold import Rejected
from onefold.infrastructure.effects.call import Clients
from onefold.infrastructure.effects.errors import LeaseLost, SecondRequest
from onefold.infrastructure.effects.mail import MailRefused, Server
from onefold.infrastructure.settings import SettingsError

from .making import KEY, async_call, calling
from .outside import Mails


def test_a_mail_is_the_same_with_every_try(mails: Mails) -> None:
    for _ in range(2):
        with calling() as call:
            identity = call.mail(
                to=["ana@example.org", "Bo <bo@example.org>"],
                subject="Größe",
                text="Your parcel is on its way.\n",
                html="<p>Your parcel is on its way.</p>",
                cc="desk@example.com",
                bcc="log@example.com",
                reply_to="help@example.com",
            )
            assert identity == f"<{KEY}@example.com>"
    (sender, to, content), (_, _, again) = mails.taken
    assert content == again
    assert (sender, to) == (
        "shop@example.com",
        ["ana@example.org", "bo@example.org", "log@example.com", "desk@example.com"],
    )
    message = mails.messages[0]
    assert (message["Message-ID"], message["Date"], message["Subject"]) == (
        f"<{KEY}@example.com>", "Mon, 02 Mar 2026 12:30:05 +0000", "Größe",
    )  # fmt: skip
    assert (message["Bcc"], message["Reply-To"]) == (None, "help@example.com")
    body = message.get_body(("plain",))
    assert body is not None
    assert body.get_content() == "Your parcel is on its way.\r\n"


def test_a_message_that_is_made_already_gets_what_it_lacks(mails: Mails) -> None:
    message = EmailMessage()
    message["To"], message["From"], message["Message-ID"] = (
        "ana@example.org",
        "desk@shop.test",
        "<own@shop.test>",
    )
    message.set_content("Hello")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="receipt.pdf")
    with calling() as call:
        assert call.send(message) == "<own@shop.test>"
    [found] = mails.messages
    assert (found["From"], found["Date"]) == ("desk@shop.test", "Mon, 02 Mar 2026 12:30:05 +0000")


def test_a_second_mail_needs_a_step(mails: Mails) -> None:
    with calling() as call:
        for _ in range(2):
            call.mail(to="ana@example.org", subject="One", text="1")
        with pytest.raises(SecondRequest, match="expected one mail in a call"):
            call.mail(to="bo@example.org", subject="Two", text="2")
        call.step("seller").mail(to="bo@example.org", subject="Two", text="2")
    assert sorted(mails.ids.values()) == [1, 2]


@pytest.mark.parametrize("where", ["ana@example.org", "DATA"])
def test_what_is_refused_for_good_is_not_tried_again(mails: Mails, where: str) -> None:
    mails.refuse = {where: "550 no such user"}
    with calling() as call, pytest.raises(MailRefused, match="550 no such user") as refused:
        call.mail(to="ana@example.org", subject="One", text="1")
    assert isinstance(refused.value, Rejected)


@pytest.mark.parametrize("where", ["ana@example.org", "DATA"])
def test_what_is_refused_for_now_may_be_tried_again(mails: Mails, where: str) -> None:
    mails.refuse = {where: "451 try later"}
    with calling() as call, pytest.raises(smtplib.SMTPException):
        call.mail(to="ana@example.org", subject="One", text="1")


@pytest.mark.parametrize("farewell", ["421 too many connections", "500 unknown"])
def test_what_a_server_says_at_the_end_sends_no_second_copy(mails: Mails, farewell: str) -> None:
    mails.refuse = {"QUIT": farewell}
    with calling() as call:
        assert call.mail(to="ana@example.org", subject="One", text="1") == f"<{KEY}@example.com>"
    mails.refuse["DATA"] = "552 too large"
    with calling() as call, pytest.raises(MailRefused, match="552 too large"):
        call.mail(to="ana@example.org", subject="Two", text="2")


def test_a_mail_that_reached_some_says_who_has_it_not(mails: Mails) -> None:
    mails.refuse = {"bo@example.org": "550 no such user"}
    with calling() as call, pytest.raises(MailRefused, match=r"the others have it.*bo@example\.org"):
        call.mail(to=["ana@example.org", "bo@example.org"], subject="One", text="1")
    assert len(mails.taken) == 1


def test_a_mail_that_names_nobody_as_sender_is_refused(mails: Mails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_SMTP_URL", mails.url.partition("?")[0])
    with calling() as call:
        with pytest.raises(SettingsError, match="who sends mails"):
            call.mail(to="ana@example.org", subject="One", text="1")
        assert call.mail(to="a@b.c", subject="One", text="1", sender="me@x.test") == f"<{KEY}@x.test>"


def test_nothing_is_sent_when_the_lease_has_ended(mails: Mails) -> None:
    with calling(lease=0.01) as call:
        time.sleep(0.02)
        with pytest.raises(LeaseLost):
            call.mail(to="ana@example.org", subject="One", text="1")
    assert mails.taken == []


def test_an_async_function_mails_too(mails: Mails) -> None:
    async def work() -> str:
        return await async_call(Clients()).mail(to="ana@example.org", subject="One", text="1")

    assert asyncio.run(work()) == f"<{KEY}@example.com>"


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("smtp://mail", Server("mail", 25)),
        ("smtp://u:p%40@mail", Server("mail", 587, False, "u", "p@")),
        ("smtps://mail?from=a%2Bb@c", Server("mail", 465, True, sender="a+b@c")),
        ("smtp://[::1]:2525", Server("::1", 2525)),
    ],
)
def test_a_server_is_named_by_a_url(url: str, server: Server) -> None:
    assert Server.from_url(url) == server
    assert "p@" not in repr(server)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://u:secret@mail", "scheme is 'http'"),
        ("smtp://u:secret@", "names no host"),
        ("smtp://u:secret@mail:port", "cannot be read"),
        ("smtp://u:secret@mail?form=a", "'form' in it has no meaning"),
        ("smtp://u:secret@mail/folder", "'/folder' in it has no meaning"),
        ("", "is not set"),
    ],
)
def test_a_url_that_names_no_server_is_refused_without_being_shown(
    url: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_SMTP_URL", url)
    with pytest.raises(SettingsError, match=problem) as refused:
        Server.from_env()
    assert "secret" not in str(refused.value)
