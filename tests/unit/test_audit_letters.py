"""Which dead letters stand, and which stand beside an effect that no redrive explains."""

from __future__ import annotations

import pytest

from relay.audit.checker import Checker, State
from relay.audit.evidence import Proven
from relay.audit.ledger import Fact, Ledger
from relay.audit.letters import SLACK_MS, Letters, SecondOutcomes, Trimmed, second_outcomes
from relay.message.identity import digest
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, DELIVERED, SKIPPED, Begin, InputRange, OutputStart
from relay.monitor.redrive import Order, Wanted

LOG = LogPartition("orders", 0)
A, B, C, D = (digest(b"c", name) for name in (b"a", b"b", b"c", b"d"))


def entry(replay: int, outcome: int = DELIVERED) -> Proven:
    return Proven(A, outcome, LOG, 0, -1, 0, replay)


def order(replay: int) -> Order:
    return Order(b"o" * 16, "main", LOG, b"i" * 16, [Wanted(0, A, replay)], "a person", 0)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_redrive_takes_back_the_letters_with_a_lower_number_whatever_is_read_first(is_reversed: bool) -> None:
    records = [(A, 0, "refused"), (A, 1, "redriven"), (B, 0, "refused"), (B, 1, "refused"), (C, 1, "redriven"), (C, 1, "untold")]
    records += [(D, 2, "redriven"), (D, 1, "refused"), (D, 1, "redriven")]
    letters = Letters()
    for one in reversed(records) if is_reversed else records:
        letters.take(*one)

    assert (letters.standing, letters.redriven, letters.deaths_of([A, B, C, D])) == ({B, C}, {A, D}, {B: 1})
    assert [letters.takes_back(A, number) for number in (0, 1)] == [True, False]


def test_a_death_beside_an_effect_is_over_with_a_later_redrive_only() -> None:
    fault, lag = SecondOutcomes(frozenset({A})), SecondOutcomes(redriving=frozenset({A}))

    assert second_outcomes({A: 1}, [], []) == fault
    assert second_outcomes({A: 1}, [entry(1)], []) == fault
    assert second_outcomes({A: 1}, [entry(2, DEAD)], []) == fault
    assert second_outcomes({A: 1}, [entry(2)], []) == SecondOutcomes()
    assert second_outcomes({A: 1}, [], [order(1)]) == fault
    assert second_outcomes({A: 1}, [], [order(2)]) == lag
    assert second_outcomes({B: 0}, [entry(2)], [order(2)]) == SecondOutcomes(frozenset({B}))


@pytest.mark.parametrize(
    ("rows", "outcomes", "wanted"),
    [
        (1, {B: DELIVERED}, (0, 0)),
        (1, {}, (0, 0)),
        (2, {B: DELIVERED}, (1, 0)),
        (1, {A: DELIVERED, B: DELIVERED}, (1, 1)),
        (1, {A: DELIVERED}, (1, 0)),  # its own row, though it died as well
        (1, {B: SKIPPED}, (1, 0)),  # which needs none
    ],
)
def test_of_two_messages_of_one_name_the_row_is_that_of_the_one_that_did_not_die(
    rows: int, outcomes: dict[bytes, int], wanted: tuple[int, int]
) -> None:
    ledger = Ledger([LOG], matches=True)
    for offset, name in enumerate((A, B)):
        ledger.add(Fact(0, offset, name, b"lane", 7, b"1"))
    checker = Checker(ledger, ordered=True)
    checker.rows([b"1"] * rows, "ledger")
    assert checker.met([A, B]) == {A, B} == set(checker.missing()), "either may be given the other's row"

    found = checker.conclude(
        State({LOG: 0}, {LOG: 0}, {A}, forgotten=(), outcomes=outcomes, open_ranges=(), second=SecondOutcomes(frozenset({A})))
    )

    assert (found.duplicates, found.lost) == wanted


def test_a_message_that_is_lost_takes_the_row_of_one_that_died_before_any_other() -> None:
    ledger = Ledger([LOG], matches=True)
    for offset, name in enumerate((B, A, C)):
        ledger.add(Fact(0, offset, name, b"lane", 7, b"1"))
    checker = Checker(ledger, ordered=True)
    checker.rows([b"1"] * 2, "ledger")

    found = checker.conclude(
        State({LOG: 0}, {LOG: 0}, {A}, forgotten=(), outcomes={C: DELIVERED}, open_ranges=[InputRange(*LOG, 0, 1)],
              second=SecondOutcomes(frozenset({A})))
    )  # fmt: skip

    assert (found.duplicates, found.lost, found.in_doubt) == (0, 0, 0)


def test_a_message_that_needs_no_row_is_given_none() -> None:
    ledger = Ledger([LOG], matches=True)
    for offset, name in enumerate((A, B)):
        ledger.add(Fact(0, offset, name, b"lane", 7, b"1"))
    checker = Checker(ledger, ordered=True)
    checker.rows([b"1"], "ledger")

    found = checker.conclude(State({LOG: 0}, {LOG: 0}, {B}, forgotten=(), outcomes={}, open_ranges=()))

    assert (found.delivered, found.unseen) == (1, 0)


P, Q = LogPartition("shop.deadletter", 0), LogPartition("shop.deadletter", 1)


@pytest.mark.parametrize(
    ("starts", "covered"), [([(P, 5)], False), ([(P, 4)], True), ([(Q, 0)], False), ([], False), ([(P, 5), (Q, 0)], False)]
)
def test_a_letter_lies_where_its_transaction_said_or_above(starts: list[tuple[LogPartition, int]], covered: bool) -> None:
    begun = Begin("w", "t", b"1" * 16, 1, -1, [], [OutputStart(*place, offset) for place, offset in starts])
    death = entry(0, DEAD)._replace(begun=begun)

    assert Trimmed({P: 5, Q: 0}).may_cover(death) is covered
    assert not Trimmed({P: 0, Q: 0}).may_cover(death)


@pytest.mark.parametrize(
    ("oldest", "covered"),
    [
        ({}, True),
        ({P: -1, Q: 10}, True),
        ({P: 999, Q: 10}, False),
        ({P: 999}, True),
        ({P: 1000, Q: 10}, True),
    ],
)
def test_a_letter_is_not_older_than_its_death_was_entered(oldest: dict[LogPartition, int], covered: bool) -> None:
    death = entry(0, DEAD)._replace(at=1000 + SLACK_MS)

    assert Trimmed({P: 5, Q: 7}, oldest).may_cover(death) is covered
    assert Trimmed({P: 5, Q: 7}, {P: 1, Q: 1}).may_cover(death._replace(at=-1)), "a recovery's"
    assert not Trimmed({P: 0, Q: 0}).may_cover(death._replace(at=-1))
