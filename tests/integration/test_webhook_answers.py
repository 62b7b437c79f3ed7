"""A webhook and a real receiver that misbehaves: what becomes of the message, under which key it is tried again, and what is said."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.queue.message import Taken, Ticket
from relay.work.message import Message
from relay.work.subscriber import Handler, Later, Unusable
from relay.work.webhook import ANSWER_BYTES_MAX, webhook
from tests.integration.receiver import Asked, Receiver, Reply

CANARY = "canary-5f1c"
LONG_S = 60.0
"""No machine is so slow that a receiver on it answers later."""


def message(number: int = 1, attempt: int = 1) -> Message:
    return Message(Taken(Ticket(number, attempt), "/shop", str(number), None, b"%d" % number, (), None, None, 4, 0, 0, (), "s"), "q")


def outcome(handler: Handler, *messages: Message) -> list[Unusable | Later | None]:
    """Run the handler on messages one after the other, in one loop, and return what it raised of each."""

    async def one(given: Message) -> Unusable | Later | None:
        try:
            await handler(given)
        except (Unusable, Later) as raised:
            return raised
        return None

    async def run() -> list[Unusable | Later | None]:
        try:
            return [await one(given) for given in messages or [message()]]
        finally:
            assert handler.close is not None
            await handler.close()

    return asyncio.run(run())


def declared(receiver: Receiver, path: str = "/", **given: Any) -> Handler:
    return webhook("q", receiver.url(path), **{"timeout_s": LONG_S, "connect_timeout_s": LONG_S, **given})


def test_the_value_comes_with_its_attributes_its_key_and_the_headers_that_were_given() -> None:
    with Receiver() as receiver:
        handler = declared(receiver, "/charges?a=b%20c", headers={"Authorization": "Bearer x"})

        assert outcome(handler) == [None]

    (asked,) = receiver.asked
    assert (asked.path, asked.body, asked.key) == ("/charges?a=b%20c", b"1", message().idempotency_key)
    wanted = {"authorization": "Bearer x", "ce-id": "1", "ce-source": "/shop", "content-type": "application/json"}
    assert wanted.items() <= asked.headers.items()
    assert asked.headers["host"] == f"127.0.0.1:{receiver.port}"


def test_name_and_making_of_the_key_are_the_applications_if_it_says_so() -> None:
    with Receiver() as receiver:
        handler = declared(receiver, key_header="X-Request-Id", key=lambda one: f"order-{one.id}", headers={"x-request-id": "no"})

        assert outcome(handler) == [None]

    assert receiver.asked[0].headers["x-request-id"] == "order-1"
    assert not receiver.asked[0].key


@pytest.mark.parametrize("key", ["", "a\nb", "ä", "k" * 256, None])
def test_a_key_that_no_header_takes_is_the_messages_end_and_nothing_is_sent(key: Any) -> None:
    with Receiver() as receiver:
        (raised,) = outcome(declared(receiver, key=lambda _: key))

    assert isinstance(raised, Unusable)
    assert receiver.asked == []


@pytest.mark.parametrize(
    ("reply", "kind", "counted", "after_s", "said"),
    [
        (Reply(204), type(None), None, None, ""),
        (Reply(500), Later, True, 0.0, "500 Internal Server Error"),
        (Reply(500, {"retry-after": "17"}), Later, True, 17.0, "500"),
        (Reply(503), Later, False, 5.0, "503"),
        (Reply(429, {"retry-after": "60"}), Later, False, 60.0, "429 Too Many Requests"),
        (Reply(401), Later, False, 5.0, "401"),
        (Reply(409), Later, True, 0.0, "409 Conflict"),
        (Reply(422), Unusable, None, None, "422"),
        (Reply(404), Unusable, None, None, "404 Not Found"),
        (Reply(299), type(None), None, None, ""),
        (Reply(599), Later, True, 0.0, "599"),
    ],
)
def test_the_answers_status_decides_and_nothing_else_of_it_is_said(
    reply: Reply, kind: type[Exception], counted: bool | None, after_s: float | None, said: str
) -> None:
    full = Reply(reply.status, {**reply.headers, "x-said": CANARY, "set-cookie": f"a={CANARY}"}, b"" if reply.status == 204 else CANARY.encode())
    with Receiver(lambda _: full) as receiver:
        (raised,) = outcome(declared(receiver, f"/{CANARY}?token={CANARY}", headers={"Authorization": CANARY}))

    assert isinstance(raised, kind)
    assert (getattr(raised, "counted", None), getattr(raised, "after_s", None)) == (counted, after_s)
    assert said in str(raised)
    assert CANARY not in str(raised)
    if raised is not None:
        assert f"http://127.0.0.1:{receiver.port}" in str(raised)
        assert raised.__cause__ is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_never_followed(status: int) -> None:
    with Receiver() as elsewhere:
        with Receiver(lambda _: Reply(status, {"location": elsewhere.url(f"/{CANARY}")})) as receiver:
            (raised,) = outcome(declared(receiver, headers={"Authorization": "Bearer x"}))

        assert isinstance(raised, Unusable)
        assert "a redirect, which is not followed" in str(raised)
        assert CANARY not in str(raised)
        assert elsewhere.connections == 0


def test_a_cookie_of_one_answer_goes_with_no_other_message() -> None:
    with Receiver(lambda _: Reply(200, {"set-cookie": "session=1"})) as receiver:
        assert outcome(declared(receiver), message(1), message(2)) == [None, None]

    assert "cookie" not in receiver.asked[1].headers


def test_messages_share_a_connection_and_have_each_its_key() -> None:
    with Receiver(lambda _: Reply(200, body=b"x" * ANSWER_BYTES_MAX)) as receiver:
        assert outcome(declared(receiver), *map(message, range(20))) == [None] * 20

    assert receiver.connections < 20
    assert len({one.key for one in receiver.asked}) == 20


def test_a_huge_answer_costs_its_connection_and_is_not_read_to_its_end() -> None:
    with Receiver(lambda _: Reply(200, body=b"x" * ANSWER_BYTES_MAX, length=1 << 40)) as receiver:
        assert outcome(declared(receiver), message(1), message(2)) == [None, None]

    assert receiver.connections == 2


def test_an_answer_that_never_ends_has_decided_by_its_status() -> None:
    with Receiver(lambda _: Reply(200, body=b"x", length=10)) as receiver:
        assert outcome(declared(receiver)) == [None]


def test_an_answer_that_does_not_come_in_time_is_in_doubt_and_the_next_try_has_the_same_key() -> None:
    never = threading.Event()

    def reply(asked: Asked) -> Reply:
        return Reply(200, wait=never if asked.number == 1 else None)

    with Receiver(reply) as receiver:
        first, second = outcome(declared(receiver, timeout_s=2.0), message(), message(attempt=2))
        never.set()

    assert isinstance(first, Later)
    assert first.counted
    assert str(first).startswith("in doubt: ")
    if second is not None:  # on a machine that needs seconds for an answer
        assert str(second).startswith("in doubt: ")
    assert len({one.key for one in receiver.asked}) == 1
    assert receiver.effects == [b"1"]


def test_a_connection_that_breaks_after_the_effect_is_in_doubt_and_the_effect_comes_once() -> None:
    with Receiver(lambda asked: Reply(0 if asked.number == 1 else 200)) as receiver:
        first, second = outcome(declared(receiver), message(), message(attempt=2))

    assert isinstance(first, Later)
    assert first.counted
    assert str(first).startswith("in doubt: ")
    assert second is None
    assert (receiver.effects, receiver.repeated) == ([b"1"], [b"1", b"1"])


def test_a_refusal_says_that_an_earlier_try_may_have_taken_effect() -> None:
    with Receiver(lambda _: Reply(422)) as receiver:
        first, second = outcome(declared(receiver), message(), message(attempt=2))

    assert "earlier" not in str(first)
    assert "an earlier try may have taken effect" in str(second)


def nobody_listens() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}/"


@pytest.mark.parametrize(("url", "why"), [(nobody_listens, "refused"), (lambda: "https://nowhere.invalid/", "")])
def test_a_receiver_that_cannot_be_reached_is_waited_for(url: Callable[[], str], why: str) -> None:
    (raised,) = outcome(webhook("q", url(), timeout_s=LONG_S))

    assert isinstance(raised, Later)
    assert not raised.counted
    assert "nothing was sent" in str(raised)
    assert why in str(raised)


def test_a_receiver_that_accepts_and_never_speaks_tls_is_waited_for_as_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        (raised,) = outcome(webhook("q", f"https://127.0.0.1:{deaf.getsockname()[1]}/", timeout_s=1.0, connect_timeout_s=0.5))

    assert isinstance(raised, Later)
    assert not raised.counted
    assert "Timeout" in str(raised)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of one's own for this machine, with its key in the same file."""
    path = tmp_path / "own.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "crt")]
    subprocess.run([*command, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    path.write_bytes((tmp_path / "key").read_bytes() + (tmp_path / "crt").read_bytes())
    return path


def test_a_certificate_is_verified_by_the_systems_authorities_or_ones_own(certificate: Path) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    with Receiver(tls=serving) as receiver:
        url = receiver.url().replace("http:", "https:")
        (strange,) = outcome(webhook("q", url, timeout_s=LONG_S))
        (known,) = outcome(webhook("q", url, timeout_s=LONG_S, tls=ssl.create_default_context(cafile=str(certificate))))

    assert isinstance(strange, Later)
    assert not strange.counted
    assert "self-signed certificate" in str(strange)
    assert known is None
    assert len(receiver.asked) == 1


def test_an_answer_over_tls_that_does_not_come_in_time_is_told_as_that(certificate: Path) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    never = threading.Event()
    with Receiver(lambda _: Reply(wait=never), tls=serving) as receiver:
        url = receiver.url().replace("http:", "https:")
        (raised,) = outcome(webhook("q", url, timeout_s=1.0, tls=ssl.create_default_context(cafile=str(certificate))))
        never.set()

    assert isinstance(raised, Later)
    assert "gave no answer (TimeoutError)" in str(raised) or "gave no answer (ReadTimeout)" in str(raised)


def test_headers_are_made_anew_for_each_try_so_that_a_secret_may_change(tmp_path: Path) -> None:
    secret = tmp_path / "token"

    def headers(_: Message) -> dict[str, str]:
        return {"Authorization": f"Bearer {secret.read_text('utf-8').strip()}"}

    with Receiver() as receiver:
        handler = declared(receiver, headers=headers)
        (missing,) = outcome(handler)
        for word in ("one\n", "two\n"):
            secret.write_text(word)
            assert outcome(handler) == [None]

    assert isinstance(missing, Later)
    assert not missing.counted
    assert [one.headers["authorization"] for one in receiver.asked] == ["Bearer one", "Bearer two"]


def test_headers_may_be_awaited_and_see_the_message() -> None:
    async def signed(one: Message) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"webhook-signature": f"v1,{len(one.value or b'')}"}

    with Receiver() as receiver:
        assert outcome(declared(receiver, headers=signed)) == [None]

    assert receiver.asked[0].headers["webhook-signature"] == "v1,1"


def wrong(_: Message) -> dict[str, str]:
    raise KeyError(CANARY)


@pytest.mark.parametrize("headers", [wrong, lambda _: {"a": f"{CANARY}\n"}, lambda _: CANARY])
def test_headers_that_cannot_be_made_use_up_a_try_and_are_not_told(headers: Any) -> None:
    with Receiver() as receiver:
        (raised,) = outcome(declared(receiver, headers=headers))

    assert isinstance(raised, Later)
    assert raised.counted
    assert CANARY not in str(raised)
    assert receiver.asked == []


def test_each_event_loop_has_connections_of_its_own() -> None:
    with Receiver() as receiver:
        handler = declared(receiver)

        assert [outcome(handler), outcome(handler)] == [[None], [None]]


def test_sixty_four_at_once_wait_beside_each_other() -> None:
    everybody = threading.Event()

    def reply(_: Asked) -> Reply:
        if len(receiver.asked) == 64:
            everybody.set()
        return Reply(200, wait=everybody)

    async def run(handler: Handler) -> None:
        await asyncio.gather(*[asyncio.create_task(handler(message(number))) for number in range(64)])
        assert handler.close is not None
        await handler.close()

    with Receiver(reply) as receiver:
        asyncio.run(run(declared(receiver)))

    assert (len(receiver.asked), receiver.connections) == (64, 64)
