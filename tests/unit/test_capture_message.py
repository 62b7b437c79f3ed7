"""What publish makes of its arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from relay.capture import message
from relay.capture.capture import Capture
from relay.capture.upkeep import DAY_S, horizon_s
from relay.kafka.appender import Appender
from relay.kafka.settings import DefaultTiming
from relay.kafka.topics import TopicFacts
from relay.message.errors import CaptureError, CaptureInDoubt, ConfigError
from relay.resources import open_resource
from relay.work.message import payload_of


def test_the_partition_of_a_key_never_changes() -> None:
    found = [message.partition_of(key, 6) for key in (b"", b"42", b"ann", "Zoë".encode(), bytes(range(16)))]

    assert found == [0, 2, 3, 2, 0]


def test_bytes_pass_as_they_are_and_the_rest_is_json() -> None:
    assert message.encoded(b"\x00") == (b"\x00", b"application/octet-stream")
    assert message.encoded({"a": 1}) == (b'{"a":1}', b"application/json")
    assert message.encoded(None) == (None, b"application/json")
    with pytest.raises(CaptureError, match="JSON"):
        message.encoded(object())


@dataclass
class Price:
    total: float


@dataclass
class Guarded:
    total: float | None = None
    _ratio: float = float("nan")
    _lock: Any = field(default_factory=Lock)


class Bound(Enum):
    LEAST = -float("inf")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_refused_and_not_published_as_null(number: float) -> None:
    for data in ({"total": number}, [[None, number]], Price(number), [Bound.LEAST]):
        with pytest.raises(CaptureError, match="no numbers of JSON"):
            message.encoded(data)
        with pytest.raises(TypeError, match="no numbers of JSON"):
            payload_of(data)
    given = {"total": None, "why": "null", "at": datetime(2026, 1, 1, tzinfo=UTC), "price": Price(1.5)}
    assert (message.encoded(given)[0] or b"").startswith(b'{"total":null,"why":"null"')
    assert message.encoded(Guarded())[0] == b'{"total":null}', "what the encoder leaves out is not looked at"


def test_the_type_of_the_relays_own_markers_is_refused() -> None:
    message.check_type("order.placed")
    with pytest.raises(CaptureError, match=r"type = 'relay\.outcome' .*choose another"):
        message.check_type("relay.outcome")


def test_more_headers_than_any_route_delivers_are_refused() -> None:
    assert len(message.extra_headers({f"h{n}": "v" for n in range(245)})) == 245
    with pytest.raises(CaptureError, match="246 are more than the 245"):
        message.extra_headers({f"h{n}": "v" for n in range(246)})


@pytest.mark.parametrize("name", ["key", "id", "subject", "type", "time", "content_type"])
def test_text_that_utf_8_does_not_have_is_refused_by_its_argument(name: str) -> None:
    message.check_text(**{name: "Zoë"})
    with pytest.raises(CaptureError, match=f"^{name}: .* surrogate"):
        message.check_text(**{name: "\ud800"})


@pytest.mark.parametrize("value", [None, 7, "\ud800"])
def test_a_header_that_is_neither_text_nor_bytes_is_refused(value: Any) -> None:
    with pytest.raises(CaptureError, match="the value of 'h' is neither"):
        message.extra_headers({"h": value})


def test_whoever_runs_again_what_was_rolled_back_does_not_run_again_what_is_in_doubt() -> None:
    assert not issubclass(CaptureInDoubt, CaptureError)


@pytest.mark.parametrize("of", [bytearray, memoryview])
def test_bytes_of_a_database_driver_are_a_key_as_they_are(of: Any) -> None:
    assert message.encoded_key(of(b"\x00\xff")) == b"\x00\xff"
    assert message.encoded(of(b"\x00\xff")) == (b"\x00\xff", b"application/octet-stream")


def test_headers_that_the_relay_writes_are_refused() -> None:
    assert message.extra_headers({"traceparent": "00-1"}) == [("traceparent", b"00-1")]
    with pytest.raises(CaptureError, match="ce_relaycapture"):
        message.extra_headers({"ce_relaycapture": b"0" * 32})
    with pytest.raises(CaptureError, match="relay_digest"):
        message.extra_headers({"relay_digest": b"0"})


def test_a_decision_outlives_every_message_that_may_ask_for_it() -> None:
    facts = TopicFacts("t", b"", 1, 1, {"retention.ms": "60000", "segment.ms": "30000"})

    assert horizon_s(facts) == 90 + DAY_S
    assert horizon_s(TopicFacts("t", b"", 1, 1, {"retention.ms": "-1"})) == float("inf")
    assert horizon_s(TopicFacts("t", b"", 1, 1)) == float("inf")


@pytest.mark.parametrize("name", ["\ud800", "ce_id\0"])
def test_a_header_name_that_the_client_would_cut_or_die_of_is_refused(name: str) -> None:
    with pytest.raises(CaptureError, match="no name of a header"):
        message.extra_headers({name: "x"})


def test_a_topic_name_that_the_client_would_die_of_is_refused() -> None:
    appender = Appender({"bootstrap.servers": "127.0.0.1:1"}, DefaultTiming())
    try:
        with pytest.raises(ConfigError, match="not a topic's name"):
            appender.topic("orders\ud800")
    finally:
        appender.close()


@pytest.mark.parametrize("source", ["", None, b"/checkout", 7, "/check\0out", "/\ud800"])
def test_a_source_that_is_no_text_is_refused_with_the_remedy(source: Any, tmp_path: Path) -> None:
    resource = open_resource("shop", f"sqlite:///{tmp_path}/shop.db")

    with pytest.raises(ConfigError, match=r"source = .*give a text that names the publisher"):
        Capture(kafka={"bootstrap.servers": "127.0.0.1:1"}, resource=resource, source=source)
