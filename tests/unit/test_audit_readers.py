"""What the auditor makes of the records of a log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from relay.audit import readers
from relay.audit.ledger import Ledger
from relay.audit.stored_ids import AsStored, as_postgresql_stores, as_sqlite_stores
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


@pytest.mark.parametrize("raw", [b"00 " * 16, b"00" * 16 + b"\n", b"00" * 17, b"no hex"])
def test_a_message_of_what_can_be_no_capture_waits_for_none(raw: bytes) -> None:
    ledger = Ledger([PLACE])
    route: Any = SimpleNamespace(name="main", to=None, order="publisher", identity=["cloudevents", "position"])
    records = [(0, 0, record(b"42", b"{}", [(ID, b"a"), (CAPTURE, raw), (RESOURCE, SHOP.encode())]))]

    readers.fill(ledger, [records], route, readers.Identity(route, {"orders": b"i" * 16}), None)

    assert (len(ledger), ledger.open_captures()) == (1, {}), "workers make a dead letter of it"


def test_what_an_output_holds_is_told_apart_wherever_key_and_value_meet() -> None:
    alike = [(b"a", b"bc"), (b"ab", b"c"), (None, b"abc"), (b"", b"abc"), (b"abc", b""), (b"abc", None), (None, None), (None, b"")]

    assert len({readers.content_of(key, value) for key, value in alike}) == len(alike)


NUMBER, SQLITES = as_postgresql_stores("numeric"), as_sqlite_stores("INTEGER")


@pytest.mark.parametrize("as_stored", [NUMBER, SQLITES, as_postgresql_stores("uuid"), as_postgresql_stores("bpchar"), None])
@pytest.mark.parametrize("identifier", [None, b"", b"9" * 5000, b"\xff", b"\xd9\xa1"])
def test_no_id_of_a_message_ends_the_audit(as_stored: AsStored | None, identifier: bytes | None) -> None:
    to: Any = SimpleNamespace(columns={"id": "ce:id", "source": "ce:source"}, mode="insert", key=[])
    headers: Any = [(ID, identifier), (SOURCE, b"/s")]
    ledger = Ledger([PLACE], matches=True)
    route: Any = SimpleNamespace(name="main", to=None, order="publisher", identity=["cloudevents", "position"])

    readers.fill(
        ledger, [[(0, 0, record(None, b"{}", headers))]], route, readers.Identity(route, {"orders": b"i" * 16}),
        readers.table_match(to, as_stored),
    )  # fmt: skip

    assert len(ledger) == 1


@pytest.mark.parametrize("as_stored", [NUMBER, SQLITES])
@pytest.mark.parametrize(
    ("identifier", "stored"),
    [("007", "7"), (" -07 ", "-7"), ("+7", "7"), ("-0", "0"), ("000", "0"), ("7.5", "7.5"), ("\u0661", "\u0661"), ("", "")],
)
def test_a_number_reads_as_its_column_writes_it(as_stored: AsStored, identifier: str, stored: str) -> None:
    assert as_stored(identifier) == stored


def test_a_long_number_reads_so_where_a_column_takes_it() -> None:
    assert NUMBER is not None
    assert SQLITES is not None
    assert NUMBER("0" + "9" * 5000) == "9" * 5000
    for identifier in ("9" * 5000, "09223372036854775808", "-9223372036854775808"):
        assert SQLITES(identifier) == identifier
    assert SQLITES("-09223372036854775807") == "-9223372036854775807"


def test_a_dead_letter_without_a_number_is_the_first() -> None:
    taken: list[tuple[object, ...]] = []
    letters: Any = SimpleNamespace(take=lambda *given: taken.append(given))
    headers: Any = [("__relay.errors.route", b"main"), ("__relay.errors.replay_count", None), ("__relay.errors.code", None)]

    readers.dead_letters([[(0, 0, record(b"00" * 16, b"", headers))]], "main", letters)

    assert taken == [(bytes(16), 0, "")]
