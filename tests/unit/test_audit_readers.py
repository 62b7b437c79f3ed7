"""What the auditor makes of the records of a log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from relay.audit import readers
from relay.audit.ledger import Ledger
from relay.capture.outcomes import encode_marker, marker_headers
from relay.message.envelope import CAPTURE, ID, RESOURCE, SOURCE, TYPE, Headers, ResourceName
from relay.message.identity import capture_id
from relay.message.record import LogPartition

PLACE = LogPartition("orders", 0)
SHOP = ResourceName("shop", "u")
NONCE = b"n" * 16
NAMED = [
    (SOURCE, b"/s"), (CAPTURE, capture_id(NONCE).hex().encode()), (RESOURCE, SHOP.encode()), (TYPE, b"relay.outcome"),
]  # fmt: skip


def record(key: bytes | None, value: bytes, headers: Headers) -> Any:
    return SimpleNamespace(key=lambda: key, value=lambda: value, headers=lambda: headers)


def test_a_captured_message_of_the_markers_type_is_a_message_that_must_take_effect() -> None:
    ledger = Ledger([PLACE])
    route: Any = SimpleNamespace(name="main", to=None, order="publisher", identity=["cloudevents", "position"])
    records = [
        (0, 0, record(b"42", b"{}", [(ID, b"a"), *NAMED])),
        (0, 1, record(capture_id(NONCE), encode_marker(capture_id(NONCE), NONCE, None, []), marker_headers(
            capture_id(NONCE), b"/s", SHOP
        ))),
        (0, 2, record(b"42", b"{}", [(ID, b"b"), (TYPE, b"relay.outcome")])),
    ]  # fmt: skip

    readers.fill(ledger, [records], route, readers.Identity(route, {"orders": b"i" * 16}), None)

    assert len(ledger) == 2


def test_what_an_output_holds_is_told_apart_wherever_key_and_value_meet() -> None:
    alike = [(b"a", b"bc"), (b"ab", b"c"), (None, b"abc"), (b"", b"abc"), (b"abc", b""), (b"abc", None), (None, None), (None, b"")]

    assert len({readers.content_of(key, value) for key, value in alike}) == len(alike)
