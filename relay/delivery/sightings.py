"""Which committed transactions of an instance were seen closed where they wrote, and which were not yet.

A broker may call a transaction committed and leave its marker out in a partition (``hanging``). There it stays open until
the next commit of the same transactional id, and an abort kills it. Last stable offsets tell: what lies below one is
closed, and closed as *committed* while nobody has fenced the instance, since an epoch holds commits only.

The monitor is written by the owner alone, so a transaction must be seen closed there before anything else is begun. Outputs
are shared: a stranger's open transaction, of minutes perhaps, hides ours as one that hangs does. So nobody waits for outputs;
begins say up to where all were seen closed, and a recovery looks for what lies above (``unshown``). Only where the first that
nobody can read is a record of the instance's own, for longer than any broker takes, it hangs for sure, and a recovery mends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from relay.delivery.ports import KafkaPorts, Reader
from relay.message.envelope import OUT_INSTANCE
from relay.message.errors import InDoubt, Stopped, Stuck, Unreachable
from relay.message.record import LogPartition, headers_if_any
from relay.monitor.entries import OutputStart
from relay.run import clock

MONITOR_WAIT_S: Final = 5.0
"""Markers follow a commit within milliseconds; a partition that comes back has its leader within this, mostly."""
HANGS_AFTER_S: Final = 30.0
ROWS_MAX: Final = 20_000
"""So many messages are kept in mind as not seen closed, and the last transaction whatever it holds: what is lost of them is
read again, and written again in one transaction. Mostly only the last one can hang, since the next commit completes it."""
TRANSACTIONS_MAX: Final = 50
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

    def committed(self, one: Committed) -> int:
        """Take a transaction that the coordinator calls committed; return how many earlier ones are believed by their seals now."""
        self._last = one.n
        if not one.ends:
            return 0
        self._left.append(one)
        self._rows += one.rows
        for place, floor in one.floors.items():
            self._floors.setdefault(place, floor)  # outputs lie one behind the other
        if self._rows <= ROWS_MAX and len(self._left) <= TRANSACTIONS_MAX:
            return 0
        before = len(self._left)
        while len(self._left) > 1 and (self._rows > ROWS_MAX // 2 or len(self._left) > TRANSACTIONS_MAX // 2):
            self._rows -= self._left.popleft().rows
        self._find_floors()
        return before - len(self._left)

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

    def is_first(self, place: LogPartition, stable: int, instance: bytes) -> bool:
        """Is the first record that nobody can read, at the last stable offset, one of this instance, and still?"""
        marks = list[bytes | None]()
        # retry: what could not be read is looked at again with what is overdue then.
        with suppress(Stuck, Unreachable), self._ports.reader(committed=False) as scanner:
            for records in scanner.read({place: (stable, stable + 1)}):
                marks += [dict(headers_if_any(record)).get(OUT_INSTANCE) for record in records]
        return instance.hex().encode() in marks and self.ends([place]).get(place) == stable

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
