"""How many inbox rows go at once: what a database has no time for is tried with fewer, and slowly with more again."""

from __future__ import annotations

import pytest

from relay.delivery.table import trims
from relay.delivery.table.trims import Trims
from relay.message.record import LogPartition

P0, P1 = LogPartition("orders", 0), LogPartition("orders", 1)


class Inbox:
    """Rows by partition; a step of more than ``able`` rows runs into the statement's timeout."""

    def __init__(self, able: int, **rows: int) -> None:
        self.able = able
        self.rows = {LogPartition("orders", int(name[1:])): count for name, count in rows.items()}
        self.steps: list[int] = []

    def delete(self, partition: LogPartition, below: int, limit: int) -> int:
        gone = min(limit, self.rows[partition], below)
        self.steps.append(gone)
        if gone > self.able:
            raise TimeoutError
        self.rows[partition] -= gone
        return gone


def run(made: Trims, inbox: Inbox) -> bool:
    try:
        made.forget(made.run(dict.fromkeys((P0, P1), 1 << 40), inbox.delete))
    except TimeoutError:
        return False
    return True


def test_what_takes_too_long_is_halved_until_it_goes() -> None:
    made, inbox = Trims(), Inbox(3_000, p0=100_000)
    made.ask(P0, 1 << 40)

    went = [run(made, inbox) for _ in range(60)]

    assert inbox.steps[:4] == [20_000, 10_000, 5_000, 2_500]
    assert went.count(False) <= 3 + 60 // 4, "most steps go through"
    assert inbox.rows[P0] == 0
    assert not made.asks(P0)


def test_it_grows_a_little_with_each_full_step_up_to_the_most() -> None:
    made, inbox = Trims(), Inbox(10_000, p0=1_000_000)
    made.ask(P0, 1 << 40)
    assert [run(made, inbox) for _ in range(2)] == [False, True]

    inbox.able = 1 << 40
    for _ in range(20):
        run(made, inbox)

    assert inbox.steps[1:4] == [10_000, 10_625, 11_289]
    assert max(inbox.steps) == inbox.steps[-1] == 20_000


def test_one_row_is_always_tried() -> None:
    made, inbox = Trims(), Inbox(0, p0=1_000_000)
    made.ask(P0, 1 << 40)

    assert not any(run(made, inbox) for _ in range(40))

    assert inbox.steps[-1] == 1
    inbox.able = 1 << 40
    assert all(run(made, inbox) for _ in range(4))
    assert inbox.steps[-4:] == [1, 2, 3, 4]


def test_a_step_is_shared_by_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trims, "TRIM_ROWS", 10)
    made, inbox = Trims(), Inbox(100, p0=4, p1=9)
    made.ask(P0, 100)
    made.ask(P1, 100)

    assert (run(made, inbox), inbox.steps) == (True, [4, 6])
    assert (made.asks(P0), made.asks(P1)) == (False, True)


def test_nothing_at_or_above_the_position_goes_and_more_that_is_asked_for_stays_asked() -> None:
    made, inbox = Trims(), Inbox(100, p0=50)
    made.ask(P0, 30)

    complete = made.run({P0: 20}, inbox.delete)
    made.ask(P0, 40)
    made.forget(complete)

    assert inbox.steps == [20]
    assert (made.asks(P0), made.due({P0: 1}), made.due({P1: 1})) == (True, True, False)
