"""What a task of Spark's audit makes of a batch of records, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from relay.audit.stored_ids import AsStored, as_postgresql_stores
from relay.jobs.facts import (
    ABORTED,
    BROKEN_MARKER,
    COMMITTED,
    FACTS,
    MESSAGE,
    PAGE_ROWS,
    Ends,
    Rules,
    _effects_of,
    _facts_of,
    _marks_of,
    _rows_of,
)
from relay.message.envelope import ID, SOURCE
from relay.message.identity import capture_id, cloudevents, position_digest, rules
from relay.message.record import LogPartition
from relay.message.schemas import codec
from relay.monitor.entries import Begin, Entry, Page, Proof, Seal, SettleSeal, encode
from relay.monitor.evidence import Evidence

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ORDERS, TOPIC_ID = LogPartition("orders", 0), b"i" * 16
INSTANCE, OTHER = b"a" * 16, b"b" * 16


def log_batch(identifiers: Sequence[bytes | None], **columns: Any) -> pa.RecordBatch:
    """Return the records of a log as Spark hands them over, in which these columns are others."""
    count = len(identifiers)
    usual = {
        "pos": list(range(count)), "at": [0] * count, "content": [7] * count, "lane": [1] * count, "shared": [None] * count,
        "capture": pa.array([None] * count, pa.binary()), "resource": pa.array([None] * count, pa.binary()),
        "marker_key": pa.array([None] * count, pa.binary()), "value": [b""] * count, "marker": [False] * count,
        "id": pa.array(identifiers, pa.binary()), "source": [b"/s"] * count,
    }  # fmt: skip
    return pa.RecordBatch.from_pydict({**usual, **columns})


def facts_of(applied: Rules, batch: pa.RecordBatch) -> dict[str, list[Any]]:
    (found,) = _facts_of(applied, [ORDERS])([batch])
    assert found.schema.names == [column.split()[0] for column in FACTS.split(", ")]
    return found.to_pydict()  # type: ignore[no-any-return]


def respelled(as_stored: AsStored | None, *identifiers: bytes | None) -> list[bool]:
    applied = Rules(("cloudevents", "position"), "publisher", {"orders": TOPIC_ID}, as_stored)
    return facts_of(applied, log_batch(identifiers))["respelled"]


def test_an_id_that_its_column_spells_otherwise_is_seen() -> None:
    assert respelled(as_postgresql_stores("uuid"), UUID.encode(), UUID.upper().encode(), None, b"none", b"\xff") == [
        False, True, False, False, False,
    ]  # fmt: skip
    assert respelled(as_postgresql_stores("int8"), b"7", b"007") == [False, True]
    assert respelled(None, UUID.upper().encode()) == [False]


def test_a_message_is_called_by_the_first_rule_that_finds_something_as_a_worker_calls_it() -> None:
    names = ("header:order", "json:/number", "cloudevents")
    values, orders, ids = [b"{}", b'{"number": 7}', b"{}", b"{}"], [b"o-1", None, None, None], [b"a", b"b", b"c", None]
    ruled = {"ruled_0": pa.array(orders, pa.binary()), "value": values}
    by_header, by_json, by_ce = rules(names)

    found = facts_of(Rules(names, "publisher", {"orders": TOPIC_ID}), log_batch(ids, **ruled))["digest"]

    assert found == [
        by_header({SOURCE: b"/s", "order": b"o-1"}, b"orders", None),
        by_json({SOURCE: b"/s"}, b"orders", values[1]),
        by_ce({SOURCE: b"/s", ID: b"c"}, b"orders", None),
        position_digest(TOPIC_ID, 0, 3),
    ]


def test_a_marker_counts_as_committed_only_if_its_nonce_proves_it() -> None:
    nonce = b"n" * 16
    capture, another = capture_id(nonce), b"x" * 16

    def marker(named: bytes, outcome: str, nonce: bytes | None) -> bytes:
        return codec("outcome").encode({"capture": named, "outcome": outcome, "nonce": nonce, "incarnation": None, "closes": []})

    values = [
        marker(capture, "COMMITTED", nonce), marker(capture, "COMMITTED", b"m" * 16), marker(capture, "COMMITTED", None),
        marker(capture, "ABORTED", None), marker(another, "ABORTED", None), None, b"no marker", b"a message",
    ]  # fmt: skip
    columns = {
        "value": pa.array(values, pa.binary()), "marker_key": pa.array([capture] * len(values), pa.binary()),
        "marker": [True] * 7 + [False], "capture": pa.array([another] * len(values), pa.binary()),
    }  # fmt: skip

    found = facts_of(Rules(("cloudevents",), "publisher", {"orders": TOPIC_ID}), log_batch([b"1"] * len(values), **columns))

    assert found["kind"] == [COMMITTED, BROKEN_MARKER, BROKEN_MARKER, ABORTED, BROKEN_MARKER, BROKEN_MARKER, BROKEN_MARKER, MESSAGE]
    assert found["capture"] == [capture, None, None, capture, None, None, None, another]


def test_an_output_is_called_as_its_message_or_by_what_the_relay_wrote_on_it() -> None:
    named, place = b"d" * 16, LogPartition("out", 0)

    def digests(*topics: str) -> list[bytes]:
        columns = {
            "pos": [0, 1, 2, 3], "at": [0] * 4, "content": [7] * 4, "own": [named.hex(), named.hex(), "no hex", None],
            "id": pa.array([b"1", None, None, None], pa.binary()), "source": pa.array([None] * 4, pa.binary()),
        }  # fmt: skip
        applied = Rules(("cloudevents", "position"), "publisher", dict.fromkeys(topics, TOPIC_ID))
        (found,) = _effects_of(applied, [place])([pa.RecordBatch.from_pydict(columns)])
        return found.column("digest").to_pylist()  # type: ignore[no-any-return]

    one, two = digests("orders"), digests("orders", "bills")

    assert one[0] == cloudevents({ID: b"1"}, b"orders", None)
    assert two[0] == named, "which of the topics stands for its source is not known"
    assert one[1] == two[1] == named
    assert len({named, one[2], one[3]}) == 3, "what nobody has named is nobody's, and not twice the same"


def page(n: int, *digests: bytes, proof: Proof = Proof.SEALED, recovery: str | None = None, **more: Any) -> Page:
    count = len(digests)
    offsets, outcomes = list(range(10, 10 + count)), bytes(count)
    return Page("w", INSTANCE, n, proof, recovery, "orders", 0, b"".join(digests), bytes(8 * count), offsets, outcomes, **more)


def begin(n: int, instance: bytes = INSTANCE) -> Begin:
    return Begin("w", "id", instance, n, n - 1, [], [])


def rows_of(entries: Sequence[Entry], wanted: frozenset[bytes] | None = None) -> list[dict[str, Any]]:
    """Return the rows that count, with all of a monitor's partition known, as the audit does."""
    ends = Ends()
    for entry in entries:
        ends.take(entry)
    keys, values = zip(*map(encode, entries), strict=True)
    count = len(keys)
    columns = {"pos": list(range(count)), "key": keys, "value": values, "partition": [3] * count, "at": [50] * count}
    found = [row for batch in _rows_of(ends, wanted)([pa.RecordBatch.from_pydict(columns)]) for row in batch.to_pylist()]
    assert all(list(row) == [column.split()[0] for column in PAGE_ROWS.split(", ")] for row in found)
    return found


D1, D2, D3 = b"1" * 16, b"2" * 16, b"3" * 16


@pytest.mark.parametrize(
    ("entries", "counting"),
    [
        pytest.param([begin(5), page(5, D1)], [], id="nothing has ended it"),
        pytest.param([begin(5), page(5, D1), Seal("w", INSTANCE, 5)], [D1], id="its seal"),
        pytest.param([begin(5), page(5, D1), Seal("w", INSTANCE, 4)], [], id="an earlier seal"),
        pytest.param([begin(5), page(5, D1), Seal("w", OTHER, 5)], [], id="another instance's seal"),
        pytest.param([begin(5), page(5, D1), begin(6)], [D1], id="its successor"),
        pytest.param([begin(5), page(5, D1), begin(6, OTHER)], [], id="another instance's begin"),
        pytest.param([begin(5), page(5, D1), SettleSeal("v", INSTANCE, 5)], [], id="settled"),
        pytest.param([begin(5), page(5, D1), SettleSeal("v", INSTANCE, 5), begin(6)], [], id="settled before its successor"),
        pytest.param([begin(5), page(5, D1), SettleSeal("v", INSTANCE, 4), Seal("w", INSTANCE, 5)], [D1], id="another was settled"),
        pytest.param([begin(4), page(4, D1), Seal("w", INSTANCE, 4), begin(5), page(5, D2)], [D1], id="the last is open"),
        pytest.param([page(5, D1, proof=Proof.PROVEN)], [D1], id="proven by itself"),
    ],
)
def test_the_same_entries_count_as_for_a_worker(entries: list[Entry], counting: list[bytes]) -> None:
    taken: list[Page] = []
    fold = Evidence(taken.append)
    for offset, entry in enumerate(entries):
        fold.add(offset, entry)

    assert [row["digest"] for row in rows_of(entries)] == counting
    assert [one.digests for one in taken] == counting


def test_of_a_page_only_what_is_wanted_is_told_with_its_own_place() -> None:
    entry = page(5, D1, D2, D3, proof=Proof.PROVEN, replays=bytes([0, 2, 1]), destinations=[7, 8, 9])

    (row,) = rows_of([begin(5), entry], frozenset({D2, b"x" * 16}))

    assert row == {
        "digest": D2, "replay": 2, "entry_order": (1 << 12) + 1, "outcome": 0, "log_topic": "orders", "log_partition": 0,
        "log_offset": 11, "destination": 8, "transaction": f"{INSTANCE.hex()}/5", "at": 50, "home": 3,
    }  # fmt: skip
    assert [one["digest"] for one in rows_of([entry])] == [D1, D2, D3]


def test_what_a_recovery_entered_names_no_transaction_of_its_own() -> None:
    own, found = (rows_of([page(0, D1, proof=Proof.PROVEN, recovery=by)]) for by in (None, "w"))

    assert [(row["transaction"], row["at"], row["replay"], row["destination"]) for row in own] == [(f"{INSTANCE.hex()}/0", 50, 0, -1)]
    assert [(row["transaction"], row["at"]) for row in found] == [(None, -1)]


def test_the_age_of_a_transaction_is_that_of_the_pages_that_it_wrote_itself() -> None:
    keys, values = zip(*map(encode, [page(4, D1), page(5, D2, proof=Proof.PROVEN, recovery="v"), begin(6)]), strict=True)
    batch = pa.RecordBatch.from_pydict({"key": keys, "value": values, "at": [50, 60, 70]})

    assert [row for found in _marks_of([batch]) for row in found.to_pylist()] == [{"instance": INSTANCE.hex(), "n": 4, "at": 50}]
