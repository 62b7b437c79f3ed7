"""What is decided is told at once: rows that living publishers hold are waited for a few at a time, and all have their turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from relay.capture import resolver
from relay.capture.resolver import LOCKED_MAX, Resolver, State
from relay.message.envelope import ResourceName
from relay.message.errors import ConfigError, Unreachable
from relay.resources.port import DecisionRow, RowLocked

SHOP = ResourceName("shop", "u")


class Database:
    """Decision rows; each wait for one that is ``held`` would take a second."""

    def __init__(self, held: Sequence[bytes], rows: Sequence[bytes] = ()) -> None:
        self.held = set(held)
        self.rows = {capture: DecisionRow(committed=True, nonce=b"n", proved=True) for capture in rows}
        self.waits = 0

    def decisions(self) -> Database:
        return self

    def frozen_writer(self) -> None:
        return None

    def uuid(self) -> str:
        return SHOP.uuid

    def abort_if_undecided(self, capture: bytes) -> None:
        if capture in self.held:
            self.waits += 1
            raise RowLocked("a publisher holds it")
        self.rows.setdefault(capture, DecisionRow(committed=False, nonce=None, proved=False))

    def read(self, captures: Sequence[bytes]) -> dict[bytes, DecisionRow]:
        return {capture: self.rows[capture] for capture in captures if capture in self.rows}


def names(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(first, first + count)]


def ask(one: Resolver, captures: Sequence[bytes]) -> dict[bytes, State]:
    found = one.resolve([(capture, SHOP) for capture in captures])
    assert set(found) == set(captures), "every question has an answer"
    return {capture: resolution.state for capture, resolution in found.items()}


def test_what_is_decided_does_not_wait_for_every_row_that_is_held() -> None:
    held, decided = names(0, 100), names(100, 3)
    database = Database(held, decided)
    states = ask(Resolver(cast("Any", {"shop": database})), held + decided)

    assert [states[capture] for capture in decided] == [State.COMMITTED] * 3
    assert {states[capture] for capture in held} == {State.UNDECIDED}
    assert database.waits == LOCKED_MAX


def test_behind_rows_that_stay_held_every_other_has_its_turn() -> None:
    slow, dead = names(0, 30), names(30, 30)
    database = Database(slow + dead)
    one = Resolver(cast("Any", {"shop": database}))
    for _ in range(20):
        ask(one, slow + dead)
    database.held = set(slow)
    turns, left = 0, set(dead)
    while left:
        fresh = names(1000 + 50 * turns, 50)
        database.held |= set(fresh)
        states = ask(one, [*slow, *sorted(left), *fresh])
        left -= {capture for capture, state in states.items() if state is State.ABORTED}
        turns += 1
        assert turns < 20, "new ones that are held must not keep the others from their turn"


def test_new_ones_do_not_wait_for_those_that_were_held_before() -> None:
    slow, dead = names(0, 50), names(50, 1)
    database = Database(slow)
    one = Resolver(cast("Any", {"shop": database}))
    for _ in range(13):
        ask(one, slow)

    assert ask(one, slow + dead)[dead[0]] is State.ABORTED


def test_it_does_not_remember_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "WAITED_MAX", 3)
    one = Resolver(cast("Any", {"shop": Database(names(0, 90))}))
    for first in range(0, 90, 3):
        ask(one, names(first, 3))
    assert len(one._waited) == 3


def test_another_database_under_the_name_decides_nothing() -> None:
    captures, database = names(0, 3), Database([], names(0, 2))
    asked = [(capture, ResourceName("shop", "the one they were captured with")) for capture in captures]

    found = Resolver(cast("Any", {"shop": database})).resolve(asked)

    assert {one.state for one in found.values()} == {State.WRONG_RESOURCE}
    assert captures[2] not in database.rows, "nor is anything aborted there"
    assert set(ask(Resolver({}), captures).values()) == {State.WRONG_RESOURCE}, "nor does one that is not configured"


class GoesAway(Database):
    """Its connections break at the first question that is asked of them."""

    opened = closed = 0

    def decisions(self) -> Database:
        self.opened += 1
        return self

    def read(self, captures: Sequence[bytes]) -> dict[bytes, DecisionRow]:
        if self.opened == 1:
            raise Unreachable("gone")
        return super().read(captures)

    def close(self) -> None:
        self.closed += 1


def test_a_database_that_went_away_is_asked_again_on_a_new_connection() -> None:
    captures = names(0, 3)
    database = GoesAway([], captures)
    one = Resolver(cast("Any", {"shop": database}))

    assert set(ask(one, captures).values()) == {State.UNREACHABLE}
    assert set(ask(one, captures).values()) == {State.COMMITTED}
    assert (database.opened, database.closed) == (2, 1)


class ReadOnly(Database):
    """It may be read, and not written to."""

    def abort_if_undecided(self, capture: bytes) -> None:
        raise ConfigError("no right to insert into relay_capture")

    def close(self) -> None:
        pass


def test_what_is_decided_is_told_although_nothing_can_be_decided_there() -> None:
    decided, undecided = names(0, 3), names(3, 3)
    one = Resolver(cast("Any", {"shop": ReadOnly([], decided)}))

    states = ask(one, [*undecided, *decided])

    assert [states[capture] for capture in decided] == [State.COMMITTED] * 3
    assert [states[capture] for capture in undecided] == [State.UNREACHABLE] * 3
