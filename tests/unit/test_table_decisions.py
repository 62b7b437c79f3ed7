"""What a table delivery decides without a database: halving, repeats, verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.delivery.table.mapping import Mapped
from relay.delivery.table.row_search import RowFault, search
from relay.delivery.table.verdicts import Arrivals, InboxAnswer, Prepared, effective, verdicts
from relay.message.errors import MessageRejected
from relay.message.record import LogMessage, LogPartition
from relay.transfer.cursor import DEAD, DELIVERED, DUPLICATE, InboxRow, Verdict


@given(st.integers(0, 200), st.sets(st.integers(0, 199), max_size=20))
def test_halving_finds_exactly_the_rows_at_fault_and_keeps_the_order(count: int, bad: set[int]) -> None:
    applied: list[int] = []
    attempts = 0

    def attempt(rows: Sequence[int]) -> None:
        nonlocal attempts
        attempts += 1
        if bad & set(rows):
            raise RowFault(MessageRejected("apply", str(rows[0]), "refused"))
        applied.extend(rows)

    faults = search(range(count), attempt).faults
    expected = bad & set(range(count))
    assert set(faults) == expected
    assert all(fault.rejection.code == str(row) for row, fault in faults.items())
    assert applied == [row for row in range(count) if row not in expected]
    assert attempts <= 1 + 2 * len(expected) * (count.bit_length() + 1)


def test_another_error_ends_the_search() -> None:
    def attempt(rows: Sequence[int]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        search([1, 2, 3], attempt)


def message(offset: int, digest: str, content: str = "c", partition: int = 0) -> LogMessage:
    return LogMessage("orders", partition, offset, None, None, [], digest.encode(), content.encode(), b"", None, 0)


def test_arrivals_are_sorted_by_digest_without_their_repeats() -> None:
    found = Arrivals.of([message(0, "b"), message(1, "a"), message(2, "b"), message(0, "c", partition=1)])
    assert found.firsts == [1, 0, 3]
    assert found.repeats == {2: 0}
    assert found.places == [LogPartition("orders", 0), LogPartition("orders", 1)]
    assert found.place_of == [0, 0, 0, 1]


def row(digest: str, offset: int, outcome: int = DELIVERED, content: str = "c", partition: int = 0) -> InboxRow:
    return InboxRow(digest.encode(), content.encode(), LogPartition("orders", partition), offset, outcome, 70)


CAUSE = MessageRejected("map", "x", "sentence")


@pytest.mark.parametrize(
    ("known", "causes", "earlier", "expected"),
    [
        (None, {}, {}, Verdict(DELIVERED, 7)),
        (None, {0: CAUSE}, {}, Verdict(DEAD, 7, CAUSE)),
        (row("a", 5), {}, {}, Verdict(DELIVERED, 70)),
        (row("a", 5, DEAD), {0: CAUSE}, {}, Verdict(DEAD, 70, CAUSE)),
        (row("a", 5, DEAD), {}, {b"a": CAUSE}, Verdict(DEAD, 70, CAUSE)),
        (row("a", 5, 2), {}, {}, Verdict(2, 70)),
        (row("a", 4), {}, {}, Verdict(DUPLICATE, 70)),
        (row("a", 4, content="other"), {}, {}, Verdict(DUPLICATE, 70, None, conflict=True)),
        (row("a", 5, partition=1), {}, {}, Verdict(DUPLICATE, 70)),
        (row("a", 4, DEAD), {}, {}, Verdict(DUPLICATE, 70)),
    ],
)
def test_the_verdict_of_every_case(
    known: InboxRow | None,
    causes: dict[int, MessageRejected],
    earlier: dict[bytes, MessageRejected],
    expected: Verdict,
) -> None:
    arrivals = Arrivals.of([message(5, "a")])
    prepared = Prepared(arrivals, Mapped([], range(0), dict(causes)))
    answer = InboxAnswer({0: 7} if known is None else {}, {} if known is None else {b"a": known})
    assert verdicts(prepared, answer, causes, earlier) == [expected]


def test_a_death_whose_cause_is_lost_says_so() -> None:
    prepared = Prepared(Arrivals.of([message(5, "a")]), Mapped([()], [0], {}))
    (verdict,) = verdicts(prepared, InboxAnswer({}, {b"a": row("a", 5, DEAD)}), {}, {})
    assert verdict.cause is not None
    assert verdict.cause.code == "cause_lost"


def test_only_new_messages_without_a_fault_take_effect() -> None:
    arrivals = Arrivals.of([message(0, "d"), message(1, "c"), message(2, "b"), message(3, "a"), message(4, "a")])
    mapped = Mapped(["r0", "r2", "r3", "r4"], [0, 2, 3, 4], {1: CAUSE})
    assert effective(Prepared(arrivals, mapped), InboxAnswer({0: 1, 1: 2, 3: 4}, {})) == [0, 2]
    fresh = Arrivals.of([message(0, "d"), message(1, "c")])
    assert effective(Prepared(fresh, Mapped(["r0", "r1"], range(2), {})), InboxAnswer({0: 1, 1: 2}, {})) is None
