"""Guards of routes into queues, each removable by name, as in `removals`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from relay.delivery.queue.effects import HeldPublishers, QueueEffect, Word
from relay.delivery.queue.mapping import Putting
from relay.delivery.queue.route import QueueDelivery
from relay.delivery.table.route import Shipment
from relay.queue.desired import Kind
from relay.queue.message import Taken
from relay.queue.stores import sql_text
from relay.transfer.cursor import Verdict
from relay.work import upkeep
from relay.work.upkeep import Upkeep
from relay.world import clock

Change = tuple[Any, str, Any]
MEANWHILE_S: Final = 0.01


def former_connection_kept() -> list[Change]:
    """A batch is put by the store that its effect was made with, whichever connection it is written on."""
    apply = QueueEffect.apply

    def as_made(self: QueueEffect, _connection: Any, rows: Sequence[Putting]) -> None:
        apply(self, self._connection, rows)

    return [(QueueEffect, "apply", as_made)]


def held_asked_twice() -> list[Change]:
    """Who is held is asked anew for each half of a batch, between which another word may be heard."""
    apply = QueueEffect.apply

    class Twice:
        def __init__(self, publishers: HeldPublishers) -> None:
            self._publishers = publishers

        @property
        def word(self) -> Word:
            return Word(_Asked(self._publishers), self._publishers.resumed)  # type: ignore[arg-type]

    def asking(self: QueueEffect, connection: Any, rows: Sequence[Putting]) -> None:
        asked, self._publishers = self._publishers, Twice(self._publishers)  # type: ignore[assignment]
        try:
            apply(self, connection, rows)
        finally:
            self._publishers = asked

    return [(QueueEffect, "apply", asking)]


class _Asked:
    """Who is held in the moment in which it is asked."""

    def __init__(self, publishers: HeldPublishers) -> None:
        self._publishers = publishers

    def __contains__(self, name: object) -> bool:
        clock.sleep(MEANWHILE_S)
        return name in self._publishers.word.held

    def __bool__(self) -> bool:
        return bool(self._publishers.word.held)


def heirs_hear_nothing() -> list[Change]:
    """A process that starts takes who was resumed once for who never had anything kept."""
    now = HeldPublishers.now

    def knowing(self: HeldPublishers, held: frozenset[str], running: frozenset[str]) -> None:
        self._running |= running
        now(self, held, running)

    return [(HeldPublishers, "now", knowing)]


def takers_over_hear_nothing() -> list[Change]:
    """A worker that takes partitions over has nothing to reveal of whoever was resumed long before."""
    return [(HeldPublishers, "taken_over", lambda self: None)]


def latest_word_not_asked() -> list[Change]:
    """A worker that takes partitions over goes by what it has heard, though their owner before had heard more."""
    return [(QueueDelivery, "_claimed", lambda self: None)]


def revealed_by_any_answer() -> list[Change]:
    """The answer to any batch says that what was kept is revealed, also to one that was sent before the word was heard."""
    accept = QueueDelivery._accept

    def of_now(self: QueueDelivery, shipment: Shipment, verdicts: Sequence[Verdict]) -> None:
        accept(self, shipment, verdicts)
        self._publishers.revealed(dict(self._publishers.resumed))

    return [(QueueDelivery, "_accept", of_now)]


def due_shown_while_held() -> list[Change]:
    """What is due is shown of whomever it is, held or not."""

    def of_all(self: Upkeep, wall: int) -> None:
        self._all_due(self._store.reveal_due, wall)

    return [(Upkeep, "_reveal_due", of_all)]


def due_past_what_is_kept() -> list[Change]:
    """A store in a database shows what is due, whatever of its publisher waits for a word before it."""
    return [(sql_text, "FIND_DUE", re.sub(r"and not exists \(.*?\n    \)", "", sql_text.FIND_DUE, flags=re.DOTALL))]


def due_before_what_was_kept() -> list[Change]:
    """The same, and what is due of a publisher that goes on is shown before what waited for that word."""
    return [*due_past_what_is_kept(), (upkeep, "reveal_kept", lambda *_: 0)]


def ones_own_pauses_alone() -> list[Change]:
    """The store does not look, and what was kept is shown first only by a process that has itself seen its publisher held."""
    reveal_due = Upkeep._reveal_due

    def of_those(self: Upkeep, wall: int) -> None:
        desired = self._desired()
        held = desired.held_publishers(self._queue)
        before, _HELD_BEFORE[self] = _HELD_BEFORE.get(self, held), held
        self._resumed |= {wish for wish in desired.of(Kind.PUBLISHER, self._queue) if wish.subject.name not in before}
        reveal_due(self, wall)

    return [*due_past_what_is_kept(), (Upkeep, "_reveal_due", of_those)]


def refused_keeps_its_lane() -> list[Change]:
    """Whoever finds a message UNUSABLE goes on with what it has of the lane, also where another one of its pool may get that message."""
    return [(Taken, "in_pool", False)]


def woken_laid_to_sleep() -> list[Change]:
    """A message whose time to wait is over waits again once another subscriber has given it back."""
    return [(sql_text, "REPHASE", sql_text.REPHASE.replace(" and phase <> $READY", ""))]


_HELD_BEFORE: Final[WeakKeyDictionary[Upkeep, frozenset[str]]] = WeakKeyDictionary()

PUTTING_REMOVALS: Final[dict[str, Callable[[], list[Change]]]] = {
    removal.__name__: removal
    for removal in (
        former_connection_kept,
        held_asked_twice,
        heirs_hear_nothing,
        takers_over_hear_nothing,
        latest_word_not_asked,
        revealed_by_any_answer,
        due_shown_while_held,
        due_past_what_is_kept,
        due_before_what_was_kept,
        ones_own_pauses_alone,
        refused_keeps_its_lane,
        woken_laid_to_sleep,
    )
}
