"""How messages take effect in a queue: put by the delivery transaction itself, on its own connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.delivery.queue_mapping import Putting
from relay.delivery.row_search import RowFault
from relay.message.errors import MessageRejected
from relay.queue.message import Audience, NewMessage
from relay.queue.modes import Balance, pooled
from relay.queue.port import QueueStore, Refused
from relay.queue.settings import QueueSettings
from relay.queue.withholding import reveal_kept
from relay.run import clock


@dataclass(slots=True)
class HeldPublishers:
    """Publishers whose messages are put and not revealed, by the word of a person ([41] to [43]).

    ``resumed`` may have messages to reveal before anything new of them is put; the number tells one resumption from the
    next. So may those of which a process that has just started hears that they were resumed once: the one before it may
    have put some without having heard of it, and behind whoever revealed what was kept by then.
    """

    held: frozenset[str] = frozenset()
    resumed: dict[str, int] = field(default_factory=dict)
    _running: frozenset[str] = frozenset()
    _count: int = 0

    def now(self, held: frozenset[str], running: frozenset[str]) -> None:
        """Go from now on by who is held, and who was resumed."""
        for publisher in sorted((self.held - held) | (running - self._running)):
            self._count += 1
            self.resumed[publisher] = self._count
        self.held, self._running = held, running

    def revealed(self, before: Mapping[str, int]) -> None:
        """What those had who were resumed at that time is revealed for good."""
        for publisher, number in before.items():
            if self.resumed.get(publisher) == number:
                del self.resumed[publisher]


class QueueEffect:
    """Puts a run of messages; ``bind`` gives the store that writes on a connection."""

    def __init__(
        self,
        connection: Any,
        bind: Callable[[Any], QueueStore],
        queue: QueueSettings,
        balance: Balance,
        publishers: HeldPublishers,
    ) -> None:
        self._store = bind(connection)
        self._queue = queue
        self._balance = balance
        self._publishers = publishers

    def finish(self, columns: list[list[Any]]) -> list[Any]:
        """Rows come from the mapping as they are."""
        return columns

    def apply(self, connection: Any, rows: Sequence[Putting]) -> None:  # noqa: ARG002 - bound when it was made
        """Put messages in their order; RowFault if the queue refuses one, StoreFull if it has no room now.

        What those who were resumed have left is revealed before, also where nothing comes.
        """
        now = clock.wall_ms()
        for publisher in list(self._publishers.resumed):
            reveal_kept(self._store, publisher, now)
        if not rows:
            return
        audience = self._balanced()
        ready = [_timed(row, now, self._queue.ttl_ms, audience) for row in rows]
        try:
            if self._publishers.held:
                held = [message for message in ready if message.publisher in self._publishers.held]
                ready = [message for message in ready if message.publisher not in self._publishers.held]
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
        ttl_ms = max(0, row.expires_at - now)
        message = message._replace(ttl_ms=ttl_ms if longest_ms is None else min(ttl_ms, longest_ms))
    return message._replace(audience=audience) if audience is not None and message.audience is None else message
