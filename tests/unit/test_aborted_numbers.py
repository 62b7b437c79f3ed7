"""Numbers that end without a message reach the batch that moves the position past them, and only when it is decided."""

from __future__ import annotations

from relay.capture.outcomes import encode_marker, marker_headers
from relay.log.holds import Decision
from relay.log.intake import Intake
from relay.message.envelope import CAPTURE, INCARNATION, RESOURCE, SEQUENCE, SOURCE
from relay.message.numbers import Number, NumberRun
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
