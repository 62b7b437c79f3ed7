"""Which entries of one monitor partition prove a delivery: folded in offset order, page by page.

An entry proves delivery if its (instance, n) is sealed or lies below the instance's last begun n (older ones were
sealed or settled before it), or if its page is PROVEN. Under a settle seal the unflagged entries of (instance, n)
count for nothing. A VOID page takes entries back. Later entries win over earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from relay.monitor.entries import Begin, Entry, Page, Proof, Seal, SettleSeal
from relay.monitor.ranges import RangeEntry


def _ignore(_entry: object) -> None:
    """Folding without an index only finds out what is open."""


@dataclass(slots=True)
class _Instance:
    """What this partition has shown of one producer instance.

    ``begun`` is the highest n it is known to have begun here: by a begin, or by a page, which always has a begin in
    front of it even where compaction has taken that away. Without this the pages of a compacted monitor would stay
    pending up to the instance's last begin.
    """

    begin: Begin | None = None
    begin_offset: int = -1
    begun: int = -1
    sealed: int = -1
    settled: int = -1
    pending: list[Page | RangeEntry] = field(default_factory=list)

    def proves(self, n: int) -> bool:
        return n != self.settled and (n <= self.sealed or n < self.begun)

    def is_ended(self, n: int) -> bool:
        return n == self.settled or self.proves(n)

    @property
    def open_begin(self) -> Begin | None:
        begin = self.begin
        return begin if begin is not None and not self.is_ended(begin.n) else None


class Evidence:
    """Folds one monitor partition; hands whole pages on as soon as they are decided.

    Pages reach ``on_rows`` and ``on_void`` in the order of their offsets, except that an undecided one waits for
    the end of its own transaction. That changes no result: a settlement decides a transaction before anybody may
    deliver its messages again. What waits is bounded by one open transaction an instance.
    """

    def __init__(
        self,
        on_rows: Callable[[Page], None] = _ignore,
        on_void: Callable[[Page], None] = _ignore,
        on_range: Callable[[RangeEntry], None] = _ignore,
        on_closing: Callable[[RangeEntry], None] = _ignore,
    ) -> None:
        self.on_rows = on_rows
        self.on_void = on_void
        self.on_range = on_range
        self.on_closing = on_closing
        self.alarms: list[str] = []
        self._has_delivered = False
        self._instances: dict[bytes, _Instance] = {}
        self._latest: dict[str, tuple[int, bytes]] = {}

    def anew(self) -> Evidence:
        """Return a fold with the same callbacks that knows nothing to be open: it goes on where nothing is."""
        made = Evidence(self.on_rows, self.on_void, self.on_range, self.on_closing)
        made._has_delivered = True
        return made

    def add(self, offset: int, entry: Entry) -> None:
        """Fold the entry at ``offset``; offsets only grow, but a range may be folded again."""
        self._has_delivered |= entry.n > 1 or isinstance(entry, Page | RangeEntry) or (isinstance(entry, Begin) and bool(entry.inputs))
        one = self._instances.get(entry.instance)
        if one is None:
            one = self._instances[entry.instance] = _Instance()
        if isinstance(entry, Page):
            self._page(one, entry)
        elif isinstance(entry, RangeEntry):
            self.on_range(entry)
            self._unproven(one, entry)
        elif isinstance(entry, Begin):
            self._begin(one, offset, entry)
        elif isinstance(entry, Seal):
            one.sealed = max(one.sealed, entry.n)
            self._decide(one)
        else:
            self._settle(one, entry)

    def add_unread(self, instance: bytes, n: int) -> None:
        """Fold a page of (instance, n) for what its presence says; what it holds is not wanted."""
        self._has_delivered = True
        one = self._instances.setdefault(instance, _Instance())
        one.begun = max(one.begun, n)

    def unsealed(self) -> list[Begin]:
        """Begins whose transaction has neither a seal nor a settle seal, nor was followed by a later one."""
        return [begin for one in self._instances.values() if (begin := one.open_begin) is not None]

    def is_ended(self, instance: bytes, n: int) -> bool:
        """Has (instance, n) a seal, a settle seal, or a successor?"""
        one = self._instances.get(instance)
        return one is not None and one.is_ended(n)

    def is_sealed(self, instance: bytes, n: int) -> bool:
        """Has (instance, n) a seal of its own, or a successor?"""
        one = self._instances.get(instance)
        return one is not None and one.proves(n)

    def begun_at(self, instance: bytes) -> int:
        """Offset of the last begin of an instance, -1 if none was folded."""
        one = self._instances.get(instance)
        return one.begin_offset if one is not None else -1

    def pending(self, instance: bytes, n: int) -> list[Page]:
        """Pages of (instance, n) that are visible and count for nothing yet."""
        one = self._instances.get(instance)
        waiting = one.pending if one is not None else []
        return [page for page in waiting if isinstance(page, Page) and page.n == n]

    def transactional_ids_open(self) -> set[str]:
        """Ids to fence, by a read_uncommitted fold.

        Those of begins without an end, unless a newer instance of the same id began here, and the last that claimed
        the partition: after its seal its commit may still be under way.
        """
        found = {
            begin.transactional_id
            for begin in self.unsealed()
            if self._latest[begin.transactional_id][1] == begin.instance
        }
        if self._latest:
            found.add(max(self._latest, key=lambda name: self._latest[name][0]))
        return found

    @property
    def has_delivered(self) -> bool:
        """Was anything but first claims folded, here or before ``anew``? A position has stood beside it."""
        return self._has_delivered

    def _page(self, one: _Instance, page: Page) -> None:
        if page.proof is Proof.PROVEN:
            self.on_rows(page)
        elif page.proof is Proof.VOID:
            self.on_void(page)
        else:
            self._unproven(one, page)

    def _unproven(self, one: _Instance, entry: Page | RangeEntry) -> None:
        """What a transaction adds counts with the transaction; what a range says by itself was taken already."""
        if one.proves(entry.n):
            self._take(entry)
        elif entry.n != one.settled:
            if entry.n > one.begun:
                one.begun = entry.n
                self._decide(one)
            one.pending.append(entry)

    def _take(self, entry: Page | RangeEntry) -> None:
        if isinstance(entry, Page):
            self.on_rows(entry)
        else:
            self.on_closing(entry)

    def _begin(self, one: _Instance, offset: int, begin: Begin) -> None:
        if begin.n < one.begun:
            return
        # Compaction removes older begins before newer ones, so the begin in front is the previous one, or there is
        # none. It is another one if a committed transaction is not visible, or compaction ran while this was read.
        if one.begin is not None and one.begin.n not in (begin.n, begin.previous):
            self.alarms.append(
                f"transaction {begin.n} of {begin.transactional_id} names {begin.previous} as its predecessor, but "
                f"{one.begin.n} is the last that this monitor partition shows; run `relay verify`"
            )
        one.begin, one.begin_offset, one.begun = begin, offset, begin.n
        self._decide(one)
        known = self._latest.get(begin.transactional_id)
        if known is None or offset >= known[0]:
            self._latest[begin.transactional_id] = (offset, begin.instance)

    def _settle(self, one: _Instance, end: SettleSeal) -> None:
        one.settled = max(one.settled, end.n)
        one.pending = [entry for entry in one.pending if entry.n != end.n]

    def _decide(self, one: _Instance) -> None:
        if not one.pending:
            return
        waiting = []
        for entry in one.pending:
            if one.proves(entry.n):
                self._take(entry)
            else:
                waiting.append(entry)
        one.pending = waiting
