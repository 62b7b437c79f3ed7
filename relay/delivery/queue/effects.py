"""How messages take effect in a queue: put by the delivery transaction itself, on its own connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relay.delivery.queue.mapping import Putting
from relay.delivery.table.row_search import RowFault
from relay.message.errors import MessageRejected
from relay.queue.message import Audience, NewMessage
from relay.queue.modes import Balance, pooled
from relay.queue.port import QueueStore, Refused
from relay.queue.settings import QueueSettings
from relay.queue.withholding import reveal_kept
from relay.world import clock


class Word(NamedTuple):
    """Who is held now, and who was resumed and may have messages to reveal; a number tells one resumption from the next."""

    held: frozenset[str]
    resumed: Mapping[str, int]


@dataclass(slots=True)
class HeldPublishers:
    """Publishers whose messages are put and not revealed, by the word of a person ([41] to [43]).

    Those who were resumed may have messages to reveal before anything new of them is put. So may those who were resumed
    once, where partitions are taken over: their owner before may have put some without having heard of it, and behind
    whoever revealed what was kept by then. The worker's thread hears, the cursor's puts: ``word`` is never changed, only
    replaced, and a batch looks at it once.
    """

    word: Word = field(default_factory=lambda: Word(frozenset(), {}))
    _running: frozenset[str] = frozenset()
    _count: int = 0

    @property
    def resumed(self) -> Mapping[str, int]:
        """Return who was resumed and may have messages to reveal."""
        return self.word.resumed

    def now(self, held: frozenset[str], running: frozenset[str]) -> None:
        """Go from now on by who is held, and who was resumed."""
        before = self.word
        # Of who is held again nothing is shown: the next batch would also show what the one before it has just put.
        resumed = {publisher: number for publisher, number in before.resumed.items() if publisher not in held}
        for publisher in sorted((before.held - held) | (running - self._running)):
            self._count += 1
            resumed[publisher] = self._count
        self._running = running
        self.word = Word(held, resumed)

    def taken_over(self) -> None:
        """Somebody else has put messages of these partitions: what is heard next is news of everybody."""
        self._running = frozenset()

    def revealed(self, before: Mapping[str, int]) -> None:
        """What those had who were resumed at that time is revealed for good."""
        held, resumed = self.word
        self.word = Word(held, {name: number for name, number in resumed.items() if before.get(name) != number})


class QueueEffect:
    """Puts a run of messages; ``bind`` gives the store that writes on a connection.

    A batch keeps the effect that it was formed by, also where that connection was lost since and it is put on another one.
    """

    def __init__(
        self,
        connection: Any,
        bind: Callable[[Any], QueueStore],
        queue: QueueSettings,
        balance: Balance,
        publishers: HeldPublishers,
    ) -> None:
        self._bind = bind
        self._connection, self._store = connection, bind(connection)
        self._queue = queue
        self._balance = balance
        self._publishers = publishers

    def finish(self, columns: list[list[Any]]) -> list[Any]:
        """Rows come from the mapping as they are."""
        return columns

    def apply(self, connection: Any, rows: Sequence[Putting]) -> None:
        """Put messages in their order; RowFault if the queue refuses one, StoreFull if it has no room now.

        What those who were resumed have left is revealed before, also where nothing comes.
        """
        if connection is not self._connection:
            self._connection, self._store = connection, self._bind(connection)
        now = clock.wall_ms()
        # Once: between two looks a publisher may be paused, and its message be put by neither, or be resumed, and overtake.
        word = self._publishers.word
        for publisher in word.resumed:
            reveal_kept(self._store, publisher, now)
        if not rows:
            return
        audience = self._balanced()
        ready = [_timed(row, now, self._queue.ttl_ms, audience) for row in rows]
        try:
            if word.held:
                held = [message for message in ready if message.publisher in word.held]
                ready = [message for message in ready if message.publisher not in word.held]
                self._store.put(held, now, reveal=False)
            self._store.put(ready, now)
        except Refused as refusal:
            raise RowFault(MessageRejected("apply", "refused", str(refusal))) from None

    def is_current(self, connection: Any) -> bool:  # noqa: ARG002 - another effect needs it
        """The queue's tables are the relay's own."""
        return True

    def _balanced(self) -> Audience | None:
        if self._balance.is_wanted and self._balance.seen(self._store.waiting()):
            return pooled(self._queue.audience)
        return None


def _timed(row: Putting, now: int, longest_ms: int | None, audience: Audience | None) -> NewMessage:
    """Return the message with its time to live from now on, at most the queue's, and the audience of the hour."""
    message = row.message
    if row.expires_at is not None:
        # One that is over already keeps the time at which it was: by that, a handler whose clock is behind does not get it either.
        ttl_ms = max(-now, row.expires_at - now)
        message = message._replace(ttl_ms=ttl_ms if longest_ms is None else min(ttl_ms, longest_ms))
    return message._replace(audience=audience) if audience is not None and message.audience is None else message
