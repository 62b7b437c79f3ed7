"""The dead-letter record: the original untouched, our facts in our headers, nothing that the log must keep."""

from __future__ import annotations

from typing import Any

from relay.delivery.deadletter import PREFIX, Letters
from relay.message.envelope import HEADERS_MAX
from relay.message.errors import MessageRejected
from relay.message.record import TOPIC_CHARACTERS_MAX, LogMessage, LogPartition
from relay.setup.migrate import CAUSE_HEADERS_BYTES

CAUSE = MessageRejected("apply", "23505", "table 'ledger' refuses the row")


def record(*headers: tuple[str, bytes], value: bytes | None = b"payload") -> LogMessage:
    return LogMessage("orders", 3, 42, b"key", value, list(headers), bytes(range(16)), b"c" * 8, b"", b"x" * 16, 1700)


def letters(**over: Any) -> Letters:
    return Letters(**{"route": "to-table", "target": "ledger", "group": "shop.to-table", "topic": "dead", "partitions": 1, **over})


def facts(message: LogMessage, cause: MessageRejected = CAUSE, replay: int = 0) -> dict[str, bytes]:
    headers = letters().of(message, cause, replay).headers
    names = [name for name, _ in headers]
    assert len(names) == len(set(names)), "a header of ours stands once"
    return {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX) and value is not None}


def test_key_and_value() -> None:
    letter = letters().of(record(), CAUSE, 0)
    assert letter.key == b"000102030405060708090a0b0c0d0e0f"
    assert letter.value == b"payload"
    assert letters().of(record(value=None), CAUSE, 0).value is None


def test_the_letters_of_a_lane_lie_in_one_partition() -> None:
    several = letters(partitions=16)
    places = {lane: {several.of(record()._replace(lane=lane, offset=n), CAUSE, 0).partition for n in range(3)} for lane in (b"a", b"b")}
    assert all(len(found) == 1 for found in places.values())
    assert places[b"a"] != places[b"b"]
    assert set().union(*places.values()) <= {LogPartition("dead", p) for p in range(16)}


def test_what_takes_letters_back_has_their_key_and_no_value() -> None:
    letter, back = letters().of(record(), CAUSE, 1), letters().taking_back(record(), 2)
    assert (back.partition, back.key, back.value) == (letter.partition, letter.key, None)
    assert {(PREFIX + "code", b"redriven"), (PREFIX + "replay_count", b"2")} <= set(back.headers)


def test_every_fact_has_its_header() -> None:
    found = facts(record(("ce_id", b"o-1")), replay=4)
    assert found == {
        "route": b"to-table", "target": b"ledger", "stage": b"apply", "code": b"23505", "class": b"MessageRejected",
        "message": b"table 'ledger' refuses the row", "topic": b"orders", "partition": b"3", "offset": b"42",
        "timestamp": b"1700", "group": b"shop.to-table", "attempts": b"1", "replay_count": b"4", "message_id": b"o-1",
    }


def test_the_originals_headers_stay_but_for_those_of_the_log_and_forged_ones() -> None:
    message = record(
        ("ce_id", b"o-1"), ("traceparent", b"t"), ("ce_relaycapture", b"c"), ("ce_relayresource", b"r"),
        ("relay_digest", b"d"), (PREFIX + "replay_count", b"99"), (PREFIX + "anything", b"x"),
    )
    headers = letters().of(message, CAUSE, 0).headers
    assert headers[:2] == [("ce_id", b"o-1"), ("traceparent", b"t")]
    assert all(name.startswith(PREFIX) for name, _ in headers[2:])
    assert facts(message)["replay_count"] == b"0"
    assert "anything" not in facts(message)


def test_a_long_sentence_is_cut_and_cannot_forge_lines() -> None:
    cause = MessageRejected("map", "x", "line\nERROR forged\x1b[31m" + "é" * 2000)
    text = facts(record(), cause)["message"].decode()
    assert len(text) == 1000
    assert text.isprintable()


def test_a_letter_has_room_in_its_topic_however_long_the_id_of_its_message_is() -> None:
    """Refused, it would stop the route, and with it all that lies behind this message."""
    message = record(("ce_id", "é".encode() * 300_000), value=b"x" * 300_000)
    cause = MessageRejected("apply", "refused", "é" * 5000)
    letter = letters(route="r" * 249, target="t" * TOPIC_CHARACTERS_MAX, group="g" * 249).of(message, cause, 0)

    assert dict(letter.headers)["ce_id"] == message.headers[0][1]
    size = len(letter.key) + len(letter.value or b"") + sum(len(name) + len(one or b"") for name, one in letter.headers)
    assert size + HEADERS_MAX * 10 - message.size < CAUSE_HEADERS_BYTES
    assert facts(message)["message_id"].decode().endswith("…")
