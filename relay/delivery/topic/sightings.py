"""Which committed transactions of an instance were seen closed where they wrote, and which were not yet.

A broker may call a transaction committed and leave its marker out in a partition (``hanging``). There it stays open until
the next commit of the same transactional id, and an abort kills it. Last stable offsets tell: what lies below one is
closed, and closed as *committed* while nobody has fenced the instance, since an epoch holds commits only.

The monitor is written by the owner alone, so a transaction must be seen closed there before anything else is begun. Outputs
are shared: a stranger's open transaction, of minutes perhaps, hides ours as one that hangs does. So nobody waits for outputs;
begins say up to where all were seen closed, and a recovery looks for what lies above (``unshown``). Only where the first that
nobody can read is a record of the instance's own, for longer than any broker takes, it hangs for sure, and a recovery mends it.
The same holds before any is believed by its seal because too many are kept in mind: where later transactions of the id have
ended, so has it, and its markers are written or left out. In an output to which nothing goes meanwhile no commit would complete it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Final

from relay.delivery.ports import KafkaPorts, Reader
from relay.message.envelope import OUT_INSTANCE
from relay.message.errors import InDoubt, Stopped, Stuck, Unreachable
from relay.message.record import LogPartition, headers_if_any
from relay.monitor.entries import OutputStart
from relay.world import clock

MONITOR_WAIT_S: Final = 5.0
"""Markers follow a commit within milliseconds; a partition that comes back has its leader within this, mostly."""
HANGS_AFTER_S: Final = 30.0
ROWS_MAX: Final = 20_000
"""So many messages are kept in mind as not seen closed, and the last transaction whatever it holds: what is lost of them is
read again, and written again in one transaction. Mostly only the last one can hang, since the next commit completes it."""
TRANSACTIONS_MAX: Final = 50
UNTOLD_MAX: Final = 20
"""So many times as much is kept in mind while nobody can tell what hides it: an output's leader may be away for seconds."""
PAUSE_S: Final = 0.001
SOON_S: Final = 0.5
"""What is closed so soon was committed: whoever aborts what hangs has waited longer, as has a coordinator."""
ALSO_S: Final = 1.0
"""Outputs are asked for beside the monitor, so for no longer than this."""
ALONE_S: Final = 10.0
"""An output that did not answer holds no question about the monitor up for so long."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction: its last record by output partition, where its outputs begin, its begins by partition."""

    n: int
    ends: Mapping[LogPartition, int]
    floors: Mapping[LogPartition, int]
    begins: Mapping[int, int]
    rows: int


class Sightings:
    """The bookkeeping of one instance: no I/O, no clock."""

    def __init__(self) -> None:
        self._left: deque[Committed] = deque()
        self._floors: dict[LogPartition, int] = {}
        self._rows = 0
        self._last = 0
        self._look_at: tuple[int, float] = (0, 0.0)

    @property
    def closed(self) -> int:
        """Up to this n every transaction was seen closed, or is too long ago."""
        return self._left[0].n - 1 if self._left else self._last

    @property
    def places(self) -> Collection[LogPartition]:
        """Where is to be looked."""
        return self._floors.keys()

    def committed(self, one: Committed) -> None:
        """Take a transaction that the coordinator calls committed."""
        self._last = one.n
        if not one.ends:
            return
        self._left.append(one)
        self._rows += one.rows
        for place, floor in one.floors.items():
            self._floors.setdefault(place, floor)  # outputs lie one behind the other

    def is_over(self, times: int = 1) -> bool:
        """Is more kept in mind than so many times the bounds?"""
        return len(self._left) > 1 and (self._rows > ROWS_MAX * times or len(self._left) > TRANSACTIONS_MAX * times)

    def hidden(self, ends: Mapping[LogPartition, int]) -> set[LogPartition]:
        """Return where last stable offsets hide any but the last one, or were not told."""
        earlier = islice(self._left, len(self._left) - 1)
        return {place for one in earlier for place, last in one.ends.items() if ends.get(place, 0) <= last}

    def believe(self) -> None:
        """Believe the older ones by their seals: half of the bounds stays."""
        while len(self._left) > 1 and (self._rows > ROWS_MAX // 2 or len(self._left) > TRANSACTIONS_MAX // 2):
            self._rows -= self._left.popleft().rows
        self._find_floors()

    def seen(self, ends: Mapping[LogPartition, int]) -> None:
        """Take last stable offsets: a record below one is closed."""
        before = len(self._left)
        while self._left and all(ends.get(place, 0) > last for place, last in self._left[0].ends.items()):
            self._rows -= self._left.popleft().rows
        if len(self._left) < before:
            self._find_floors()

    def overdue(self, now: float) -> Collection[LogPartition]:
        """Return where to look whose record hides the oldest one: it is looked for since a while, or the last look was as long ago."""
        if not self._left:
            return ()
        oldest = self._left[0]
        n, at = self._look_at
        if n != oldest.n or now >= at:
            self._look_at = oldest.n, now + HANGS_AFTER_S
        return oldest.ends.keys() if n == oldest.n and now >= at else ()

    def since(self, partition: int) -> int:
        """Return the offset of the first begin in a monitor partition of what was not seen closed, -1 if there is none."""
        return next((one.begins[partition] for one in self._left if partition in one.begins), -1)

    def unseen(self) -> list[OutputStart]:
        """Return where outputs of what was not seen closed may lie."""
        return [OutputStart(place.topic, place.partition, floor) for place, floor in sorted(self._floors.items())]

    def _find_floors(self) -> None:
        self._floors = {}
        for one in self._left:
            for place, floor in one.floors.items():
                self._floors.setdefault(place, floor)


class Watch:
    """Asks for last stable offsets, all in one request, on a handle that is kept for the instance's life."""

    def __init__(self, ports: KafkaPorts) -> None:
        self._ports = ports
        self._held = ExitStack()
        self._reader: Reader | None = None
        self._also_from = float("-inf")
        self._strangers: dict[LogPartition, int] = {}
        """By place the last stable offset at which a stranger's record was found."""

    def ends(self, also: Collection[LogPartition]) -> dict[LogPartition, int]:
        """Ask once, where an answer is welcome and nothing depends on it; empty without one."""
        if not also or clock.monotonic() < self._also_from:
            return {}
        try:
            return self._asker().ends(also, ALSO_S)
        except (Unreachable, Stopped):  # away, or not allowed
            self._also_from = clock.monotonic() + ALONE_S
            return {}

    def wait(
        self, needed: Mapping[LogPartition, int], also: Collection[LogPartition], meanwhile: Callable[[], bool] | None = None
    ) -> dict[LogPartition, int]:
        """Wait until what lies at the offsets ``needed`` is closed; return the last answer, with ``also`` if it was told.

        Raises InDoubt after ``MONITOR_WAIT_S`` seconds.
        """
        limit = clock.monotonic() + MONITOR_WAIT_S
        while True:
            if meanwhile is None or not meanwhile():
                clock.sleep(PAUSE_S)
            ends = self.ends({*needed, *also}) or self._asker().ends(needed)
            left = [place for place, last in needed.items() if ends[place] <= last]
            if not left:
                return ends
            if clock.monotonic() >= limit:
                named = ", ".join(f"{place.topic}[{place.partition}]" for place in left)
                raise InDoubt(f"what was committed is still open in {named} after {MONITOR_WAIT_S:.0f} s")

    def is_first(self, place: LogPartition, stable: int, instance: bytes) -> bool | None:
        """Is the first record that nobody can read, at the last stable offset, one of this instance, and still? None: untold."""
        if self._strangers.get(place) == stable:
            return False
        if clock.monotonic() < self._also_from:
            return None
        marks = list[bytes | None]()
        try:
            with self._ports.reader(committed=False) as scanner:
                for records in scanner.read({place: (stable, stable + 1)}):
                    marks += [dict(headers_if_any(record)).get(OUT_INSTANCE) for record in records]
        except (Stuck, Unreachable):
            # retry: what could not be read is looked at again later.
            self._also_from = clock.monotonic() + ALONE_S
            return None
        if instance.hex().encode() in marks:
            still = self.ends([place])
            return still[place] == stable if still else None
        self._strangers[place] = stable
        return False

    def show(self, records: Mapping[LogPartition, int]) -> bool:
        """Do all these records show? They are closed."""
        spans = {place: (offset, offset + 1) for place, offset in records.items()}
        return sum(len(found) for found in self._asker().read(spans)) == len(records)

    def close(self) -> None:
        """Let go of the handle."""
        self._held.close()
        self._reader = None

    def _asker(self) -> Reader:
        if self._reader is None:
            self._reader = self._held.enter_context(self._ports.reader(committed=True))
        return self._reader
