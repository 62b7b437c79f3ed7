"""When rows of an inbox may go. They have no time of their own: their age is that of the position they lie below.

A process knows since when the monitor has everything below a position. Where rows are kept for the horizon, and a process
does not live that long, the monitor tells: each take-over notes the position and where the monitor ends, beside the
publishers' ranges, in the position's transaction. Once the monitor begins above that end, its retention has passed over all
rows below that position, and that is a horizon at least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from relay.delivery.table.note_rows import note_row, taken_notes
from relay.message.record import LogPartition
from relay.monitor.ranges import Mark, RangeKey, thinned
from relay.transfer.cursor import Claim, RangeRow

RUNGS: Final = 100
"""Where an inbox is kept for a horizon, rows go in so many steps: what is remembered does not grow with the deliveries."""


@dataclass(slots=True)
class Rung:
    """Positions below which the monitor had everything by ``at``; the first of them was noted at ``since``."""

    since: float
    at: float
    positions: dict[LogPartition, int]


class Rungs:
    """What one process knows of the ages; ``keep_s`` None: rows go as soon as the monitor has them."""

    def __init__(self, keep_s: float | None) -> None:
        self._keep_s = keep_s or 0.0
        self._rungs: deque[Rung] = deque()

    def __len__(self) -> int:
        return len(self._rungs)

    def note(self, positions: Mapping[LogPartition, int], now: float) -> None:
        """The monitor has everything below these positions."""
        last = self._rungs[-1] if self._rungs else None
        if last is not None and now - last.since < self._keep_s / RUNGS:
            last.at = now
            last.positions.update(positions)
        else:
            self._rungs.append(Rung(now, now, dict(positions)))

    def take(self, now: float) -> dict[LogPartition, int]:
        """Return, once, the positions below which rows may go."""
        below: dict[LogPartition, int] = {}
        while self._rungs and now - self._rungs[0].at >= self._keep_s:
            below.update(self._rungs.popleft().positions)
        return below

    def clear(self) -> None:
        """Nothing is known any more."""
        self._rungs.clear()


class InboxMarks:
    """What processes before this one noted, by log partition: rows below ``last`` and it are entered below ``below``."""

    def __init__(self) -> None:
        self._marks: dict[LogPartition, list[Mark]] = {}

    def take(self, claims: Mapping[LogPartition, Claim]) -> dict[LogPartition, Claim]:
        """Take the notes out of what a claim has read; what is left are publishers' ranges."""
        notes, left = taken_notes(claims, _key)
        self._marks = {place: [Mark(*triple) for triple in triples] for place, triples in notes.items()}
        return left

    def aged(self, ends: Mapping[int, tuple[int, int]]) -> dict[LogPartition, int]:
        """Return below which positions rows may go; ``ends`` are the monitor's low and high watermarks by partition."""
        found: dict[LogPartition, int] = {}
        for place, marks in self._marks.items():
            low, _ = ends[place.partition]
            gone = [mark.last + 1 for mark in marks if mark.below <= low]
            if gone:
                found[place] = max(gone)
        return found

    def note(
        self, positions: Mapping[LogPartition, int], ends: Mapping[int, tuple[int, int]], worker: str
    ) -> list[RangeRow]:
        """Note that all below the positions is entered below the monitor's ends; return the rows that say so.

        A position that a person has put back makes the rows above it young again.
        """
        rows: list[RangeRow] = []
        for place, position in positions.items():
            low, high = ends[place.partition]
            before = self._marks.get(place, [])
            marks = [mark for mark in before if mark.last < position]
            while len(marks) > 1 and marks[1].below <= low:
                del marks[0]
            if position > 0 and (not marks or marks[-1].last < position - 1):
                marks.append(Mark(high, 0, position - 1))
            if marks != before:
                self._marks[place] = marks = thinned(marks)
                rows.append(note_row(place, _key, marks, worker))
        return sorted(rows, key=lambda row: (row.partition, row.publisher))


def _key(place: LogPartition) -> RangeKey:
    """A publisher that there is not: every one has an incarnation."""
    return RangeKey(place.topic, b"", b"")
