"""What persons have told of deliveries is obeyed where nothing else decides, and about nothing beside that."""

from __future__ import annotations

from typing import Any

import pytest

from relay.delivery.topic.told import Persons, split
from relay.message.errors import Stuck
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import Begin, InputRange
from relay.monitor.resolution import Kind, Resolution, Resolutions, Told, of_offsets
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.test_recovery_again import LOG, message

OTHER, ELSEWHERE = LogPartition("other", 0), LogPartition("log", 1)
BEGIN = Begin("w", "w", b"i" * 16, 3, 2, [InputRange("log", 0, 4, 8)], [])


def word(number: int, place: LogPartition, first: int, following: int, told: Told = Told.COMMIT) -> Resolution:
    return Resolution(bytes([number]) * 16, of_offsets(Kind.DELIVERY, "main", place, first, following), told, "ann", "", 1, "")


class Book:
    """The control topic: what was decided, and what was obeyed since."""

    def __init__(self, *words: Resolution) -> None:
        self.words = Resolutions(list(words))
        self.obeyed: list[Resolution] = []

    def read(self) -> Resolutions:
        return self.words

    def obey(self, resolution: Resolution, done: str) -> None:
        self.obeyed.append(resolution)
        self.words.answers.setdefault(resolution.id, [])


def settled(*words: Resolution, position: int = 4) -> tuple[list[Resolution], list[Resolution]]:
    """Settle a transaction of offsets 4 to 7 that its outputs cannot tell of; return what was obeyed, and what happened."""
    book: Any = Book(*words)
    persons = Persons(book, "main")
    persons.read([LOG, OTHER, ELSEWHERE])
    positions = {LOG: position, OTHER: 4, ELSEWHERE: 4}
    persons.settle(MemoryKafka().reader(committed=True), "monitor", 0, BEGIN, positions, "the output is gone")  # type: ignore[arg-type]
    return book.obeyed, persons.said_it_happened(positions)


def test_only_words_about_what_is_in_doubt_are_obeyed() -> None:
    mine, late = word(1, LOG, 4, 6), word(2, LOG, 6, 8, Told.ABORT)
    beside = [word(3, OTHER, 4, 8), word(4, ELSEWHERE, 4, 8), word(5, LOG, 8, 12), word(6, LOG, 1, 4)]

    obeyed, happened = settled(*beside, mine, late)

    assert obeyed == [mine, late]
    assert happened == [mine]


@pytest.mark.parametrize(
    ("words", "named"),
    [([], "4-7"), ([word(1, LOG, 4, 6)], "6-7"), ([word(1, LOG, 5, 8)], "4"), ([word(1, OTHER, 4, 8), word(2, ELSEWHERE, 4, 8)], "4-7")],
    ids=["none", "of the first", "of the last", "of other places"],
)
def test_what_nobody_has_decided_is_named(words: list[Resolution], named: str) -> None:
    with pytest.raises(Stuck, match=rf"delivery:main/log/0/{named}`") as stuck:
        settled(*words)

    assert (stuck.value.numbers, stuck.value.by_person) == (frozenset({0}), True)


def test_below_the_position_nothing_is_left_to_decide() -> None:
    happened, not_so = word(1, LOG, 4, 6), word(2, LOG, 6, 8, Told.ABORT)

    assert settled(happened, not_so, position=8) == ([], [])
    assert settled(happened, not_so, position=5) == ([happened, not_so], [happened])
    assert settled(happened, not_so, position=6) == ([not_so], [])
    persons = Persons(Book(happened), "main")  # type: ignore[arg-type]
    persons.read([LOG])
    persons._all.answers[happened.id] = []
    assert [persons.said_it_happened({LOG: at}) for at in (5, 6)] == [[happened], []]


def test_messages_are_entered_as_delivered_exactly_where_somebody_said_so() -> None:
    words = [word(1, LOG, 2, 4), word(2, LogPartition("log", 1), 4, 9)]
    batch = [message(offset) for offset in range(1, 6)]

    rest, entered = split(batch, words)

    def offsets(some: list[LogMessage]) -> list[int]:
        return [one.offset for one in some]

    assert offsets(rest) == [1, 4, 5]
    assert {name: offsets(some) for name, some in entered.items()} == {words[0].reference: [2, 3]}
