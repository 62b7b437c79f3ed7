"""What an answer makes of its message, what of a message leaves the relay, and what is refused when a webhook is declared."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest

from relay.message.errors import ConfigError
from relay.queue.message import Taken, Ticket
from relay.work.message import Message
from relay.work.subscriber import Later, Unusable
from relay.work.webhook import ANSWERS, answer_to, event_headers, retry_after_s, webhook

NOW_MS = 1_445_412_480_000  # Wed, 21 Oct 2015 07:28:00 GMT
URL = "https://api.example/charges"


def message(*headers: tuple[str, bytes | None], subject: str | None = None) -> Message:
    return Message(Taken(Ticket(1, 1), "/shop", "7", None, b"{}", headers, subject, None, 4, 0, 0, (), "charge"), "payments")


@pytest.mark.parametrize(
    ("answer", "statuses"),
    [
        ("done", [200, 201, 202, 204, 299]),
        ("wait", [401, 429, 503]),
        ("again", [408, 409, 425, 500, 501, 502, 504, 507, 599]),
        ("unusable", [100, 101, 300, 301, 302, 303, 304, 307, 308, 400, 402, 403, 404, 405, 410, 413, 415, 422, 428, 431, 451]),
    ],
)
def test_each_status_makes_one_thing_of_its_message(answer: str, statuses: list[int]) -> None:
    assert {answer_to(status) for status in statuses} == {answer}


def test_an_application_says_otherwise_for_some() -> None:
    answers = {**ANSWERS, 409: "done", 404: "again", 500: "unusable"}

    assert [answer_to(status, answers) for status in (409, 404, 500, 503)] == ["done", "again", "unusable", "wait"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 0.0),
        ("0", 0.0),
        (" 120 ", 120.0),
        ("9" * 4000, 999_999_999.0),
        ("-5", 0.0),
        ("1.5", 0.0),
        ("soon", 0.0),
        ("Wed, 21 Oct 2015 07:30:00 GMT", 120.0),
        ("Wed, 21 Oct 2015 07:00:00 GMT", 0.0),
        ("Wed, 99 Oct 9999 07:00:00 GMT", 0.0),
        ("²", 0.0),
    ],
)
def test_how_long_a_receiver_wants_to_be_left_alone(text: str | None, seconds: float) -> None:
    assert retry_after_s(text, NOW_MS) == seconds


@pytest.fixture
def _in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_in_new_york")
@pytest.mark.parametrize("text", ["Wed Oct 21 07:30:00 2015", "Wed, 21 Oct 2015 07:30:00 -0000", "Wed, 21 Oct 2015 07:30:00"])
def test_a_time_that_names_no_zone_is_in_gmt_as_all_of_http_are(text: str) -> None:
    assert retry_after_s(text, NOW_MS) == 120.0


def test_attributes_leave_as_the_http_binding_of_cloudevents_has_them() -> None:
    given = message(
        ("ce_specversion", b"1.0"),
        ("ce_id", b"a-1"),
        ("ce_source", "/Köln/a b".encode()),
        ("ce_type", b'say "100%"'),
        ("ce_subject", "€ 😀".encode()),
        ("ce_time", b"2026-11-28T03:00:00Z"),
        ("ce_sequence", b"17"),
        ("content-type", b"application/json; charset=utf-8"),
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    )

    assert event_headers(given) == {
        "ce-specversion": "1.0",
        "ce-id": "a-1",
        "ce-source": "/K%C3%B6ln/a%20b",
        "ce-type": "say%20%22100%25%22",
        "ce-subject": "%E2%82%AC%20%F0%9F%98%80",
        "ce-time": "2026-11-28T03:00:00Z",
        "ce-sequence": "17",
        "content-type": "application/json; charset=utf-8",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }


def test_a_message_that_nobody_made_an_event_is_one() -> None:
    assert event_headers(message(subject="a subject")) == {
        "ce-specversion": "1.0",
        "ce-id": "7",
        "ce-source": "/shop",
        "ce-type": "payments",
        "ce-subject": "a%20subject",
    }


@pytest.mark.parametrize(
    "name",
    [
        "ce_relaycapture", "ce_relayresource", "ce_relayincarnation", "ce_relaypriority", "ce_relayparents", "ce_relaymode",
        "ce_relayaudience", "ce_relaydelay", "relay_edited", "relay_place", "relay_digest", "x-private", "authorization", "ce_A b",
    ],
)  # fmt: skip
def test_neither_the_relays_own_headers_nor_an_applications_others_leave(name: str) -> None:
    assert event_headers(message((name, b"canary"))) == event_headers(message())


def test_of_a_name_that_repeats_the_last_one_counts_and_none_without_a_value() -> None:
    found = event_headers(message(("ce_type", b"a"), ("ce_type", b"b"), ("ce_time", None)))

    assert (found["ce-type"], "ce-time" in found) == ("b", False)


@pytest.mark.parametrize("header", [("ce_type", b"\xff"), ("content-type", b"a\r\nx: y"), ("content-type", "ä".encode())])
def test_what_has_no_form_in_a_header_is_refused_and_not_altered(header: tuple[str, bytes]) -> None:
    with pytest.raises(Unusable):
        event_headers(message(header))


def test_what_traces_it_is_left_out_where_no_header_takes_it() -> None:
    assert "tracestate" not in event_headers(message(("tracestate", b"a\nb")))


@pytest.mark.parametrize(
    "url",
    [
        "api.example/charges", "ftp://api.example/", "https://", "https:///charges", "http://api.example/charges",
        "https://api.example:port/", "https://user:canary@api.example/", "https://api.example/a b", "https://api.example/ä",
        "https://[::1", "http://10.0.0.1/", "https://api.example:99999/",
    ],
)  # fmt: skip
def test_an_address_that_is_none_or_not_encrypted_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        webhook("mail", url)

    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("url", [URL, "http://localhost:8080/", "http://127.0.0.1/a?b=c", "http://[::1]:80/", "https://[2001:db8::1]/"])
def test_encrypted_ones_and_those_of_this_machine_are_taken(url: str) -> None:
    assert webhook("mail", url).is_async


def test_another_machine_is_called_in_plain_text_only_where_that_is_asked_for() -> None:
    assert webhook("mail", "http://mesh.internal/", allow_plaintext=True).queue == "mail"


def unverified() -> ssl.SSLContext:
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


@pytest.mark.parametrize(
    "given",
    [
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"connect_timeout_s": -1},
        {"key_header": "a b"},
        {"key_header": "Content-Length"},
        {"content_type": "text/plain\r\nHost: other"},
        {"content_type": "text/plain; charset=ü"},
        {"content_type": ""},
        {"answers": {409: "fine"}},
        {"answers": {100: "done"}},
        {"headers": {"Authorization": "canary\r\nx: y"}},
        {"headers": {"Authorization": "canary "}},
        {"headers": {"Authorization": b"canary"}},
        {"headers": {"Content-Length": "3"}},
        {"headers": [("Authorization", "canary")]},
        {"tls": unverified()},
    ],
)
def test_what_cannot_be_is_refused_when_it_is_declared_and_no_secret_told(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        webhook("mail", URL, **given)

    assert "canary" not in str(refused.value)


def test_what_is_declared_shows_neither_its_path_nor_its_headers() -> None:
    declared = webhook("mail", "https://api.example:8443/T0/canary?token=canary", headers={"Authorization": "Bearer canary"})

    assert "<webhook to https://api.example:8443>" in repr(declared)
    assert "canary" not in repr(declared)


def test_headers_that_are_not_made_in_time_wait_as_such_and_the_receiver_is_not_said_to_be_away() -> None:
    async def never(_: Message) -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(Later, match=r"^its headers were not made within 0\.01 s; it waits$") as raised:
        asyncio.run(webhook("mail", URL, headers=never, timeout_s=0.01)(message()))

    assert not raised.value.counted


def test_a_function_of_the_key_that_runs_out_of_time_by_itself_fails_as_any_other() -> None:
    def key(_: Message) -> str:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        asyncio.run(webhook("mail", URL, key=key)(message()))
