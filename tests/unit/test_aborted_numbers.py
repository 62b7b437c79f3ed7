"""Numbers that end without a message reach the batch that moves the position past them, and only when it is decided."""

from __future__ import annotations

import pytest

from relay.capture.outcomes import encode_marker, marker_headers
from relay.delivery.batch import Batch
from relay.delivery.numbering import closings
from relay.log.ended import Decision
from relay.log.holds import CLAIMS_MAX, Aborted
from relay.log.intake import Intake
from relay.message.envelope import CAPTURE, INCARNATION, RESOURCE, SEQUENCE, SOURCE
from relay.message.numbers import Number, NumberRun
from relay.monitor.ranges import Ranges, Standing, encode_key, encode_value
from tests.unit.test_intake import CAPTURE as ID
from tests.unit.test_intake import NONCE, PLACE, SHOP, Fake, intake

SOURCE_NAME = b"/shop"


def numbered(offset: int, sequence: int) -> Fake:
    return Fake(
        offset,
        [
            (SOURCE, SOURCE_NAME), (RESOURCE, SHOP.encode()), (INCARNATION, b"i1"), (CAPTURE, ID.hex().encode()),
            (SEQUENCE, b"%d" % sequence),
        ],
    )  # fmt: skip


def marker(offset: int, nonce: bytes | None, *closes: int, incarnation: str | None = "i1") -> Fake:
    value = encode_marker(ID, nonce, incarnation, closes)
    return Fake(offset, marker_headers(ID, SOURCE_NAME, SHOP), value, ID)


def taken(made: Intake) -> tuple[list[tuple[Number, int]], list[NumberRun]]:
    found = made.take_aborted().get(PLACE)
    return (found.numbers, found.claims) if found is not None else ([], [])


RUN = NumberRun(SOURCE_NAME, b"i1", 4, 6)


def test_dropped_messages_hand_on_their_numbers_once() -> None:
    made = intake()
    made.take([numbered(0, 1), numbered(1, 2)], 0)
    assert taken(made) == ([], []), "nothing is decided"

    made.decide(ID, SHOP, Decision.ABORTED)
    made.take([numbered(2, 3)], 0)
    assert taken(made)[0] == [(Number(SOURCE_NAME, b"i1", n), n - 1) for n in (1, 2, 3)]
    assert taken(made) == ([], [])


def test_a_committed_captures_numbers_close_by_delivery() -> None:
    made = intake()
    made.take([numbered(0, 4), marker(1, NONCE, 4, 3)], 0)

    assert taken(made) == ([], [])
    assert [m.offset for m in made.take_ready(10)] == [0]


def test_an_aborted_marker_speaks_for_messages_that_never_arrived() -> None:
    made = intake()
    made.take([marker(0, None, 4, 3)], 0)

    assert taken(made) == ([], [RUN])
    assert made.is_numbered()


def test_a_marker_of_an_undecided_capture_waits_for_the_resources_word() -> None:
    for decision, expected in ((Decision.ABORTED, [RUN]), (Decision.COMMITTED, [])):
        made = intake()
        made.take([numbered(0, 4), marker(1, None, 4, 3)], 0)
        assert taken(made) == ([], []), "a marker is only a hint"

        made.decide(ID, SHOP, decision)
        assert taken(made)[1] == expected


def test_a_marker_after_the_decision_counts_if_it_agrees() -> None:
    for decision, expected in ((Decision.ABORTED, [RUN]), (Decision.COMMITTED, [])):
        made = intake()
        made.take([numbered(0, 4)], 0)
        made.decide(ID, SHOP, decision)
        made.take([marker(1, None, 4, 3)], 0)
        assert taken(made)[1] == expected


def test_odd_claims_are_none() -> None:
    made = intake()
    made.take([marker(0, None, 0, 3), marker(1, None, 4, 0), marker(2, None, 4, 3, incarnation=None)], 0)
    assert taken(made) == ([], [])


def test_only_captured_messages_are_looked_at() -> None:
    made = intake()
    made.take([Fake(0, [(SOURCE, SOURCE_NAME), (INCARNATION, b"i1"), (SEQUENCE, b"1")])], 0)

    assert not made.is_numbered()
    assert made.take_aborted() == {}


@pytest.mark.parametrize(
    ("source", "incarnation", "first", "count"),
    [
        (b"s" * 600_000, "i1", 4, 3),  # written twice into a monitor's record, it is more than a broker takes
        (SOURCE_NAME, "i" * 600_000, 4, 3),
        (SOURCE_NAME, "i1", 2**62, 2**62 + 1),  # ends beyond Avro's numbers
        (SOURCE_NAME, "i1", 2**63 - 1, 2**63 - 1),
        (SOURCE_NAME, "i1", 4, 10**18),  # beyond what a message's own number may be
    ],
)
def test_a_strangers_marker_claims_nothing_that_evidence_could_not_hold(
    source: bytes, incarnation: str, first: int, count: int
) -> None:
    """A batch closes what it claims, so one such marker would keep every batch of its partition from being written."""
    made = intake()
    value = encode_marker(ID, None, incarnation, [first, count, 7, 2])
    made.take([Fake(0, marker_headers(ID, source, SHOP), value, ID)], 0)
    batch = Batch(0, [], {}, {}, {}, b"", aborted=made.take_aborted())

    written = [entry for some in closings(batch).values() for entry in Ranges().entries(some, worker="w", instance=bytes(16), n=0)]

    assert all(len(encode_key(entry.key)) + len(encode_value(entry)) < 4_000 for entry in written)
    assert [entry.claimed for entry in written] == ([[7, 8]] if (source, incarnation) == (SOURCE_NAME, "i1") else [])


@pytest.mark.slow
def test_what_is_written_of_a_publishers_numbers_is_bounded_whatever_a_batch_closes() -> None:
    """A record that brokers refuse would keep every batch of its partition from being written."""
    numbers = [(Number(SOURCE_NAME, b"i1", 10**17 + 2 * n), n) for n in range(100_000)]
    claims = [NumberRun(SOURCE_NAME, b"i1", 2 * n + 1, 2 * n + 1) for n in range(100_000)]
    found = closings(Batch(0, [], {}, {}, {}, b"", aborted={PLACE: Aborted(numbers, claims)}))[0]
    ranges = Ranges()

    (entry,) = ranges.entries(found, worker="w", instance=bytes(16), n=1)

    assert len(encode_key(entry.key)) + len(encode_value(entry)) < 10_000
    assert (entry.closing[:2], entry.claimed[:4]) == ([10**17, 10**17], [1, 1, 3, 3])
    ranges.close(found)
    assert ranges.standing(entry.key, 1) is not Standing.OPEN


def test_numbers_wait_for_a_batch_in_bounds() -> None:
    """While a destination is away nothing takes them, and what has no message does not stop the reading."""
    made = intake()
    for n in range(2000):
        made.take([marker(n, None, *(part for m in range(64) for part in (1000 * n + 2 * m + 1, 1)))], 0)

    assert len(taken(made)[1]) == CLAIMS_MAX
