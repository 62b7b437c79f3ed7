"""Redriving: what persons have ordered of a worker's partitions is read from the log again and delivered once more.

Which message may be tried is decided by its entry alone (``relay.monitor.redrive``); so this may forget everything at
any time, and begin again with the first message of the first open order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import Final

import structlog

from relay.delivery.ports import Reader
from relay.message.record import LogMessage, LogPartition, Record
from relay.monitor.index import DedupIndex, Standing
from relay.monitor.redrive import Do, Ending, Order, Orders, Wanted, decide, encode_ending
from relay.run.following import Records
from relay.world import clock

log = structlog.get_logger("relay.redriving")
LOOK_S: Final = 1.0
BUSY_LOOK_S: Final = 0.05
MESSAGES_MAX: Final = 500
OFFSETS_MAX: Final = 5_000
"""Messages, and offsets of the log, that one batch is read from: the worker's loop waits for it."""

GONE: Final = "it has left the log, which its dead letter outlived: publish it again under a new id"
OTHER_TOPIC: Final = "its topic was deleted and created again: publish it again"
OTHER_MESSAGE: Final = "the log has another message there, or it has another identity by now: publish it again"

Derive = Callable[[Record, str, int], LogMessage | None]
Put = Callable[[bytes, bytes | None], None]


class Redriving:
    """Reads orders and the messages they name; for the worker's thread."""

    def __init__(
        self,
        route: str,
        worker: str,
        followed: Records,
        put: Put,
        derive: Derive,
        open_reader: Callable[[], AbstractContextManager[Reader]],
        entering: Callable[[], AbstractSet[bytes]],
        *,
        batch_bytes: int,
    ) -> None:
        self._route = route
        self._worker = worker
        self._followed = followed
        self._put = put
        self._derive = derive
        self._open_reader = open_reader
        self._entering = entering
        self._batch_bytes = batch_bytes
        self._orders = Orders()
        self._look_at = float("-inf")
        self._has_heard = False
        self._handed: set[tuple[bytes, int]] = set()
        self._refused: dict[bytes, str] = {}

    def start(self) -> None:
        """Begin anew: whatever was handed on before, the entries tell what became of it."""
        self._handed.clear()
        self._refused.clear()

    def close(self) -> None:
        """Follow orders no more."""
        self._followed.close()

    def is_due(self, now: float) -> bool:
        """Is it time to look?"""
        return now >= self._look_at

    def is_busy(self, places: Mapping[LogPartition, int]) -> bool:
        """Is an order for these partitions open?"""
        return bool(self._orders.of(self._route, places))

    def listen(self) -> None:
        """Go on hearing of orders without partitions of which any could be."""
        if self._has_heard:
            self.hear()

    def hear(self) -> None:
        """Take orders in; also while none can be delivered, since the reader's client keeps what it says of itself until it is asked."""
        for key, value in self._followed.records():
            self._orders.add(key, value)
        self._has_heard = True
        self._orders.endings.clear()  # each follows its order, and has closed it

    def turn(
        self,
        now: float,
        places: Mapping[LogPartition, int],
        indexes: Mapping[int, DedupIndex],
        topic_ids: Callable[[], Mapping[str, bytes]],
        limit: int,
    ) -> list[tuple[LogMessage, int]]:
        """Return up to ``limit`` dead messages to deliver now, each with the number of this redrive; end what is done.

        Raises Unreachable or Stuck where the log, or the control topic, does not answer.
        """
        self.hear()
        mine = self._orders.of(self._route, places)
        self._look_at = now + (BUSY_LOOK_S if mine else LOOK_S)
        for order in mine:
            found = self._next(order, indexes[order.place.partition], topic_ids(), min(limit, MESSAGES_MAX))
            if found is not None:
                return found
        return []

    def _next(
        self, order: Order, index: DedupIndex, topic_ids: Mapping[str, bytes], limit: int
    ) -> list[tuple[LogMessage, int]] | None:
        """Return an order's next messages, none while earlier ones are under way; None once it has ended."""
        stands = index.standings([one.digest for one in order.wanted])
        judged = [(one, standing, *decide(one, standing)) for one, standing in zip(order.wanted, stands, strict=True)]
        due = [
            (one, standing)
            for one, standing, do, _ in judged
            if do is Do.DELIVER and standing is not None and one.digest not in self._refused
        ]
        if None in stands and not self._entering().isdisjoint(one.digest for one in order.wanted):
            return []  # a dead letter may be seen a moment before its entry is
        if due and order.topic_id != topic_ids.get(order.place.topic):
            self._refused.update((one.digest, OTHER_TOPIC) for one, _ in due)
            due = []
        # By the digest: nothing sifts these batches, and an order of another program may name a message twice.
        fresh = {one.digest: (one, standing) for one, standing in due if (one.digest, one.replay) not in self._handed}
        if fresh:
            return self._read(order.place, list(fresh.values()), limit)
        if due:
            return []
        self._end(order, [(self._refused.get(one.digest, why), do) for one, _, do, why in judged])
        return None

    def _read(
        self, place: LogPartition, due: Sequence[tuple[Wanted, Standing]], limit: int
    ) -> list[tuple[LogMessage, int]]:
        """Read the first of these messages from the log: so many that a batch has room for them."""
        first = due[0][0].offset
        wanted = {one.offset: (one, standing) for one, standing in due if first <= one.offset < first + OFFSETS_MAX}
        found: list[tuple[LogMessage, int]] = []
        size = 0
        with self._open_reader() as reader:
            low, high = reader.watermarks(place)
            for offset in [offset for offset in wanted if not low <= offset < high]:
                self._refuse(place, wanted.pop(offset)[0], GONE)
            span = (min(wanted), max(wanted) + 1) if wanted else (low, low)
            for record in (one for records in reader.read({place: span}) for one in records):
                one, standing = wanted.pop(record.offset() or 0, (None, None))
                if one is None or standing is None:
                    continue
                message = self._derive(record, place.topic, place.partition)
                if message is None or message.digest != one.digest or not _is_same(message, standing):
                    self._refuse(place, one, OTHER_MESSAGE)
                    continue
                found.append((message, one.replay))
                size += message.size
                if len(found) >= limit or size >= self._batch_bytes:
                    break
            else:
                for one, _ in wanted.values():
                    self._refuse(place, one, GONE)  # compacted away
        self._handed.update((message.digest, replay) for message, replay in found)
        return found

    def _refuse(self, place: LogPartition, one: Wanted, why: str) -> None:
        log.warning("not redriven", at=f"{place.topic}[{place.partition}]@{one.offset}", reason=why)
        self._refused[one.digest] = why

    def _end(self, order: Order, judged: Sequence[tuple[str, Do]]) -> None:
        """Say what became of the order. Dying between the two records leaves an order that has an ending: it is over."""
        done = Counter(do for _, do in judged)
        refused = Counter(why for why, do in judged if do in (Do.DELIVER, Do.REFUSE))
        ending = Ending(order.id, self._worker, clock.wall_ms(), done[Do.DELIVERED], done[Do.DIED], refused)
        self._put(*encode_ending(ending))
        self._put(order.key, None)
        del self._orders.open[order.id]
        for one in order.wanted:
            self._handed.discard((one.digest, one.replay))
            self._refused.pop(one.digest, None)
        log.info("redriven", by=order.who, delivered=ending.delivered, died=ending.died, refused=sum(refused.values()))


def _is_same(message: LogMessage, standing: Standing) -> bool:
    """Is this the message that died? Its content may be unknown."""
    return not any(standing.content) or message.content == standing.content
