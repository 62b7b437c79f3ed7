"""Entries that a waiting message keeps needed for longer than the monitor keeps them are written again in time.

While a message waits the position stays below it, and what overtook it is read again at every take-over: only its
entry says that it has its effect. The monitor's retention would take that entry after a horizon, so what lies above a
position that does not move is carried on. The page says by itself that it is proven: it names deliveries that were
sealed long ago, so a settlement of the transaction that carries it neither looks for their outputs nor takes it back.

What is due follows from positions and from how often was looked; nothing here reads a clock or does I/O of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from relay.delivery.evidence_reading import MonitorView
from relay.message.identity import DIGEST_BYTES
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, DELIVERED, PAGE_ROWS, UNKNOWN_OFFSET, Page, Proof
from relay.monitor.index import DedupIndex, Held
from relay.monitor.rows import split

log = structlog.get_logger("relay.carrying")
LOOKS_PER_HORIZON: Final = 4
"""An entry is written again when it is between a quarter and half a horizon old."""
FIRST_LOOK_S: Final = 600.0
"""How old entries are is not known after a take-over; a partition that changes hands all the time is left in peace."""
CARRIED_AT_ONCE: Final = 8 * PAGE_ROWS
"""Entries of one transaction, under a megabyte: the next batch waits for it."""
_NO_END: Final = 1 << 62


class Span(NamedTuple):
    """Log offsets whose entries are due: from the position up to ``end``; ``is_overtaken``: the reader stands above it."""

    first: int
    end: int
    is_overtaken: bool

    def has(self, offset: int) -> bool:
        """Is the entry of a message at this offset due? One of unknown offset is as soon as anything was overtaken."""
        if offset == UNKNOWN_OFFSET:
            return self.is_overtaken
        return self.first <= offset < self.end


def spans(
    positions: Mapping[LogPartition, int], reached: Mapping[LogPartition, int], marks: Mapping[LogPartition, int] | None
) -> dict[LogPartition, Span]:
    """Return where entries are due, by log partition.

    ``marks`` say where the reader stood at the look before this one: what lies above was delivered since then, and a
    position that has passed its mark leaves nothing to carry. Without marks the age of no entry is known: all are due.
    """
    found: dict[LogPartition, Span] = {}
    for place, position in positions.items():
        end = _NO_END if marks is None else marks.get(place, _NO_END)
        if position < end:
            found[place] = Span(position, end, position < reached.get(place, position))
    return found


def carried(
    held: Iterator[Held], spans_of: Mapping[str, Span], partition: int, *, worker: str, instance: bytes, n: int
) -> list[Page]:
    """Return pages of the entries that are due, each as it stands: outcome, replay number, content and offset."""
    by_topic: dict[str, list[Held]] = {}
    for one in held:
        span = spans_of.get(one.topic)
        if span is not None and span.has(one.offset):
            by_topic.setdefault(one.topic, []).append(one)
    made: list[Page] = []
    for topic, rows in by_topic.items():
        for start in range(0, len(rows), PAGE_ROWS):
            part = rows[start : start + PAGE_ROWS]
            replays = bytes([one.replay for one in part])
            made.append(
                Page(
                    worker, instance, n, Proof.PROVEN, f"{worker}, written again", topic, partition,
                    digests=b"".join([one.digest for one in part]),
                    contents=b"".join([one.content for one in part]),
                    offsets=[one.offset for one in part],
                    outcomes=bytes([DEAD if one.is_dead else DELIVERED for one in part]),
                    replays=replays if any(replays) else b"",
                )
            )  # fmt: skip
    return made


@dataclass(slots=True)
class _Found:
    """What a look found in one index and is still to be written: digests, of which some may be done with by then."""

    index: DedupIndex
    ends: Mapping[str, int]
    digests: bytearray


class Carrying:
    """Looks now and then at what one worker's positions hold, and says what its next transaction writes again."""

    def __init__(self, horizon_s: float) -> None:
        self._period_s = horizon_s / LOOKS_PER_HORIZON
        self._look_at: float | None = None
        self._marks: dict[LogPartition, int] | None = None
        self._left: deque[_Found] = deque()

    def start(self) -> None:
        """A take-over: other partitions, and entries of unknown age."""
        self._look_at = self._marks = None
        self._left.clear()

    def due(
        self,
        now: float,
        views: Collection[MonitorView],
        positions: Mapping[LogPartition, int],
        reached: Mapping[LogPartition, int],
        *,
        worker: str,
        instance: bytes,
        n: int,
    ) -> list[tuple[int, Page]]:
        """Return what the next transaction writes again, a bounded number of entries; what it holds is then done with.

        ``positions`` are the stored ones, ``reached`` is where the reader stood with them. If that transaction fails,
        ``start`` follows as part of the recovery.
        """
        if self._look_at is None:
            self._look_at = now + min(FIRST_LOOK_S, self._period_s)
        if not self._left and now >= self._look_at:
            self._look_at = now + self._period_s
            self._look(views, positions, reached)
        if not self._left:
            return []
        found = self._left[0]
        part = bytes(found.digests[: CARRIED_AT_ONCE * DIGEST_BYTES])
        del found.digests[: len(part)]
        if not found.digests:
            self._left.popleft()
        number = found.index.partition
        here = spans(
            {place: at for place, at in positions.items() if place.partition == number}, reached,
            {LogPartition(topic, number): end for topic, end in found.ends.items()},
        )  # fmt: skip
        made = carried(
            found.index.held(split(part)), {place.topic: span for place, span in here.items()}, number,
            worker=worker, instance=instance, n=n,
        )  # fmt: skip
        for page in made:
            place = LogPartition(page.topic, number)
            assert self._marks is not None
            self._marks[place] = max(self._marks[place], max(page.offsets) + 1)
        if made:
            log.info("entries written again", partition=number, entries=sum(page.rows for page in made))
        return [(number, page) for page in made]

    def _look(
        self, views: Collection[MonitorView], positions: Mapping[LogPartition, int], reached: Mapping[LogPartition, int]
    ) -> None:
        """Find candidates where something is held; an index is gone through only there, and after a take-over."""
        due = spans(positions, reached, self._marks)
        self._marks = {place: max(at, reached.get(place, at)) for place, at in positions.items()}
        for view in views:
            here = {place.topic: span for place, span in due.items() if place.partition == view.partition}
            if not here:
                continue
            digests = view.index.from_offsets({topic: span.first for topic, span in here.items()})
            if digests:
                self._left.append(_Found(view.index, {topic: span.end for topic, span in here.items()}, digests))
