"""What a task of Spark's audit makes of a batch of records, without Spark."""

from __future__ import annotations

import pyarrow as pa

from relay.audit.stored_ids import AsStored, as_postgresql_stores
from relay.jobs.facts import FACTS, Rules, _facts_of
from relay.message.record import LogPartition

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def respelled(as_stored: AsStored | None, *identifiers: bytes | None) -> list[bool]:
    rules = Rules(("cloudevents", "position"), "publisher", {"orders": b"i" * 16}, as_stored)
    count = len(identifiers)
    columns = {
        "pos": list(range(count)), "at": [0] * count, "content": [7] * count, "lane": [1] * count, "shared": [None] * count,
        "capture": pa.array([None] * count, pa.binary()), "resource": pa.array([None] * count, pa.binary()),
        "marker_key": pa.array([None] * count, pa.binary()), "value": [b""] * count, "marker": [False] * count,
        "id": pa.array(identifiers, pa.binary()), "source": [b"/s"] * count,
    }  # fmt: skip
    (found,) = _facts_of(rules, [LogPartition("orders", 0)])([pa.RecordBatch.from_pydict(columns)])
    assert found.schema.names == [column.split()[0] for column in FACTS.split(", ")]
    return found.column("respelled").to_pylist()  # type: ignore[no-any-return]


def test_an_id_that_its_column_spells_otherwise_is_seen() -> None:
    assert respelled(as_postgresql_stores("uuid"), UUID.encode(), UUID.upper().encode(), None, b"none", b"\xff") == [
        False, True, False, False, False,
    ]  # fmt: skip
    assert respelled(as_postgresql_stores("int8"), b"7", b"007") == [False, True]
    assert respelled(None, UUID.upper().encode()) == [False]
