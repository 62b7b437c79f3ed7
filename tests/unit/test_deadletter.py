"""The dead-letter record: the original untouched, our facts in our headers, nothing that the log must keep."""

from __future__ import annotations

from relay.delivery.deadletter import PREFIX, dead_letter
from relay.message.envelope import HEADERS_MAX
from relay.message.errors import MessageRejected
from relay.message.record import TOPIC_CHARACTERS_MAX, LogMessage
from relay.setup.migrate import CAUSE_HEADERS_BYTES

CAUSE = MessageRejected("apply", "23505", "table 'ledger' refuses the row")


def record(*headers: tuple[str, bytes], value: bytes | None = b"payload") -> LogMessage:
    return LogMessage("orders", 3, 42, b"key", value, list(headers), bytes(range(16)), b"c" * 8, b"", b"x" * 16, 1700)


def facts(message: LogMessage, cause: MessageRejected = CAUSE, **over: object) -> dict[str, bytes]:
    given = {"route": "to-table", "target": "ledger", "group": "shop.to-table", "attempts": 2, **over}
    _, _, headers = dead_letter(message, cause, **given)  # type: ignore[arg-type]
    names = [name for name, _ in headers]
    assert len(names) == len(set(names)), "a header of ours stands once"
    return {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}


def test_key_and_value() -> None:
    key, value, _ = dead_letter(record(), CAUSE, route="r", target="t", group="g", attempts=1)
    assert key == b"000102030405060708090a0b0c0d0e0f"
    assert value == b"payload"
    assert dead_letter(record(value=None), CAUSE, route="r", target="t", group="g", attempts=1)[1] is None


def test_every_fact_has_its_header() -> None:
    found = facts(
        record(("ce_id", b"o-1")), first_failed_at="2026-01-01T00:00:00Z", last_failed_at="2026-01-02T00:00:00Z", replay_count=4
    )
    assert found == {
        "route": b"to-table", "target": b"ledger", "stage": b"apply", "code": b"23505", "class": b"MessageRejected",
        "message": b"table 'ledger' refuses the row", "topic": b"orders", "partition": b"3", "offset": b"42",
        "timestamp": b"1700", "group": b"shop.to-table", "attempts": b"2", "first_failed_at": b"2026-01-01T00:00:00Z",
        "last_failed_at": b"2026-01-02T00:00:00Z", "replay_count": b"4", "message_id": b"o-1",
    }


def test_the_originals_headers_stay_but_for_those_of_the_log_and_forged_ones() -> None:
    message = record(
        ("ce_id", b"o-1"), ("traceparent", b"t"), ("ce_relaycapture", b"c"), ("ce_relayresource", b"r"),
        ("relay_digest", b"d"), (PREFIX + "replay_count", b"99"), (PREFIX + "anything", b"x"),
    )
    _, _, headers = dead_letter(message, CAUSE, route="r", target="t", group="g", attempts=1)
    assert headers[:2] == [("ce_id", b"o-1"), ("traceparent", b"t")]
    assert all(name.startswith(PREFIX) for name, _ in headers[2:])
    assert facts(message)["replay_count"] == b"0"
    assert "anything" not in facts(message)


def test_a_long_sentence_is_cut_and_cannot_forge_lines() -> None:
    cause = MessageRejected("map", "x", "line\nERROR forged\x1b[31m" + "é" * 2000)
    text = facts(record(), cause)["message"].decode()
    assert len(text) == 1000
    assert text.isprintable()


def test_times_are_left_out_when_unknown() -> None:
    assert not {"first_failed_at", "last_failed_at"} & facts(record()).keys()
    assert facts(record(), last_failed_at="2026-01-02T00:00:00Z")["first_failed_at"] == b"2026-01-02T00:00:00Z"


def test_a_letter_has_room_in_its_topic_however_long_the_id_of_its_message_is() -> None:
    """Refused, it would stop the route, and with it all that lies behind this message."""
    message = record(("ce_id", "é".encode() * 300_000), value=b"x" * 300_000)
    cause = MessageRejected("apply", "refused", "é" * 5000)
    key, value, headers = dead_letter(message, cause, route="r" * 249, target="t" * TOPIC_CHARACTERS_MAX, group="g" * 249, attempts=1)

    assert dict(headers)["ce_id"] == message.headers[0][1]
    letter = len(key) + len(value or b"") + sum(len(name) + len(one or b"") for name, one in headers)
    assert letter + HEADERS_MAX * 10 - message.size < CAUSE_HEADERS_BYTES
    assert facts(message)["message_id"].decode().endswith("…")
