"""Messages that no evidence can decide: their partition waits until a person has decided every one of them.

The words of persons are read once at each recovery. Obeyed ones stay in force for as long as their messages lie above
the position: the settlement that obeyed them wrote down only that its transaction is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay.delivery.evidence_reading import proven_offsets
from relay.delivery.ports import Book, Reader
from relay.message.errors import Stuck
from relay.message.record import LogMessage, LogPartition
from relay.monitor.entries import Begin
from relay.monitor.in_doubt import Attempt, Doubt, Why, in_doubt
from relay.monitor.recovery import Do, Entered, Shown, decide
from relay.monitor.resolution import Kind, Resolution, Resolutions, Span, of_offsets, uncovered
from relay.world.crash import crash_point


class Persons:
    """What persons have told one route about deliveries; without a book nobody ever does."""

    def __init__(self, book: Book | None, route: str) -> None:
        self._book = book
        self._route = route
        self._all = Resolutions()
        self._words: list[Resolution] = []

    def read(self, assigned: Sequence[LogPartition]) -> None:
        """Read what was decided up to now about messages of these partitions."""
        if self._book is not None:
            self._all = self._book.read()
            self._words = self._all.of_route(Kind.DELIVERY, self._route, assigned)

    def settle(
        self,
        reader: Reader,
        monitor: str,
        number: int,
        begin: Begin,
        positions: Mapping[LogPartition, int],
        shown: str,
    ) -> None:
        """Obey what was decided about the messages of a transaction whose outputs cannot tell.

        Raises Stuck, naming what nobody has decided yet.
        """
        own = {place: position for place, position in positions.items() if place.partition == number}
        proven = proven_offsets(reader, monitor, number, own)
        doubts = in_doubt(own, [Attempt(begin, 0, Why.UNREADABLE)], proven)
        spans = [Span(word.subject.first, word.subject.next) for word in self._words]
        for doubt in doubts:
            of_place = [
                span for span, word in zip(spans, self._words, strict=True) if word.subject.place == doubt.place
            ]
            for span in uncovered(doubt.first, doubt.next, of_place):
                name = of_offsets(Kind.DELIVERY, self._route, doubt.place, span.first, span.next).text
                raise Stuck(
                    f"{shown}; its messages stay in doubt until a person decides: see `relay indoubt show CONFIG {name}`",
                    frozenset({number}),
                    by_person=True,
                )
        for word in self._words:
            mine = any(_meet(doubt, word) for doubt in doubts)
            if mine and self._book is not None:
                do = decide(Entered.NOTHING, Shown.UNREADABLE, word.told).do
                self._book.obey(word, do.value)
                crash_point("recovery.told")

    def said_it_happened(self, positions: Mapping[LogPartition, int]) -> list[Resolution]:
        """Return the obeyed words that still have messages to be entered as delivered without an output."""
        return [
            word
            for word in self._words
            if decide(Entered.NOTHING, Shown.UNREADABLE, word.told).do is Do.ENTER_AS_TOLD
            and self._all.is_obeyed(word)
            and word.subject.next > positions.get(word.subject.place, 0)
        ]


def split(messages: list[LogMessage], words: Sequence[Resolution]) -> tuple[list[LogMessage], dict[str, list[LogMessage]]]:
    """Return the messages to deliver, and those to enter as delivered by the reference of who said so."""
    rest: list[LogMessage] = []
    entered: dict[str, list[LogMessage]] = {}
    for message in messages:
        place = LogPartition(message.topic, message.partition)
        said = next(
            (
                word
                for word in words
                if word.subject.place == place and word.subject.first <= message.offset < word.subject.next
            ),
            None,
        )
        if said is None:
            rest.append(message)
        else:
            entered.setdefault(said.reference, []).append(message)
    return rest, entered


def _meet(doubt: Doubt, word: Resolution) -> bool:
    same = doubt.place == word.subject.place
    return same and word.subject.first < doubt.next and doubt.first < word.subject.next
