"""What a route's monitor proves: an entry counts only under the end that its own transaction came to.

An entry proves a delivery if it was written as proven, if its (instance, n) is sealed, or if n lies below the
instance's last begun n; under a settle seal the entries of (instance, n) count for nothing. Of the entries of a
digest the one with the highest replay number decides, and of several the latest.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from relay.message.identity import DIGEST_BYTES
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, NOT_DELIVERED, Begin, Entry, InputRange, Page, Proof, Seal, SettleSeal

UNKNOWN_AGE: Final = 1 << 62
"""A time that no record has, for what has no time that a broker gave."""


class Proven(NamedTuple):
    """The deciding entry of one message; ``group`` tells the delivery transactions apart, -1 where unknown.

    ``replay`` is the number of the redrive that it is of, 0 for none. Of a death that its own delivery transaction entered
    ``at`` says when the broker took that, and ``begun`` which begin opened it, as far as they are known.
    """

    digest: bytes
    outcome: int
    partition: LogPartition
    offset: int
    destination: int
    group: int
    replay: int = 0
    at: int = -1
    begun: Begin | None = None


@dataclass(frozen=True, slots=True)
class _Rows:
    """A page, packed: a million entries take about 40 MB."""

    instance: bytes
    n: int
    proof: Proof
    recovered: bool
    partition: LogPartition
    digests: bytes
    offsets: array[int]
    outcomes: bytes
    replays: bytes
    destinations: array[int]
    at: int
    begun: Begin | None


class Evidence:
    """Takes the records of a monitor topic, each partition in order, then answers."""

    def __init__(self) -> None:
        self._pages: list[_Rows] = []
        self._begun: dict[bytes, int] = {}
        self._sealed: dict[bytes, int] = {}
        self._settled: set[tuple[bytes, int]] = set()
        self._last: dict[tuple[int, str], Begin] = {}
        self._oldest: dict[int, int] = {}

    def take(self, monitor_partition: int, entry: Entry, at: int = -1) -> None:
        """Take the next entry of a monitor partition, which the broker appended ``at`` milliseconds, -1 if unknown."""
        self._oldest.setdefault(monitor_partition, at if at >= 0 else UNKNOWN_AGE)
        if isinstance(entry, Page):
            self._pages.append(
                _Rows(
                    entry.instance, entry.n, entry.proof, entry.recovery is not None,
                    LogPartition(entry.topic, entry.partition), entry.digests, array("q", entry.offsets),
                    entry.outcomes, entry.replays, array("q", entry.destinations),
                    at if entry.recovery is None else -1, self._begin(monitor_partition, entry),
                )
            )  # fmt: skip
        elif isinstance(entry, Begin):
            self._begun[entry.instance] = max(entry.n, self._begun.get(entry.instance, -1))
            self._last[monitor_partition, entry.transactional_id] = entry
        elif isinstance(entry, Seal):
            self._sealed[entry.instance] = max(entry.n, self._sealed.get(entry.instance, -1))
        elif isinstance(entry, SettleSeal):
            self._settled.add((entry.instance, entry.n))

    def copy(self) -> Evidence:
        """Return the same evidence, to take further entries."""
        made = Evidence()
        made._pages, made._last, made._oldest = list(self._pages), dict(self._last), dict(self._oldest)
        made._begun, made._sealed, made._settled = dict(self._begun), dict(self._sealed), set(self._settled)
        return made

    @property
    def instances(self) -> set[bytes]:
        """The producer instances that wrote into this monitor."""
        return set(self._begun) | {page.instance for page in self._pages}

    @property
    def partitions(self) -> set[LogPartition]:
        """The log partitions of which something was entered."""
        return {page.partition for page in self._pages}

    def digests(self) -> set[bytes]:
        """Return all of which an entry counts."""
        return {digest for digest, _ in self._counting(None)}

    def redriven(self) -> set[bytes]:
        """Return of which a redrive was entered: their dead letters, and what took those back, may be gone by now."""
        return {
            page.digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]
            for page in self._pages if page.replays and self._counts(page)
            for row, replay in enumerate(page.replays) if replay
        }  # fmt: skip

    def oldest(self, monitor_partition: int) -> int:
        """Return when the broker took the first record that is left of a monitor partition; UNKNOWN_AGE if nothing tells."""
        return self._oldest.get(monitor_partition, UNKNOWN_AGE)

    def first_since(self, at: int) -> dict[bytes, int]:
        """Return the first transaction of each instance whose entries the broker took at this time or later."""
        found: dict[bytes, int] = {}
        for page in self._pages:
            if page.at >= at:
                found[page.instance] = min(page.n, found.get(page.instance, page.n))
        return found

    def proven(self, wanted: Collection[bytes] | None = None) -> Iterator[Proven]:
        """Yield the deciding entry of each digest (of those wanted, if given) that shows an outcome."""
        return self._shown(dict(self._counting(wanted)).items())

    def proven_of(self, index: Mapping[bytes, int]) -> Iterator[Proven]:
        """Yield the same for the digests of an index, which numbers them from 0, in 8 bytes for each instead of 180."""
        latest = array("q", [-1]) * len(index)
        for digest, place in self._counting(index):
            latest[index[digest]] = place
        return self._shown((digest, latest[row]) for digest, row in index.items() if latest[row] >= 0)

    def _counting(self, wanted: Collection[bytes] | None) -> Iterator[tuple[bytes, int]]:
        """Yield the entries that count, the deciding one of a digest last: page and row in one number."""
        redriven: dict[bytes, int] = {}
        for number, page in enumerate(self._pages):
            if not self._counts(page):
                continue
            digests = page.digests
            for row in range(len(page.offsets)):
                digest = digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]
                if wanted is not None and digest not in wanted:
                    continue
                if page.replays or digest in redriven:
                    replay = page.replays[row] if page.replays else 0
                    if replay < redriven.get(digest, 0):
                        continue
                    redriven[digest] = replay
                yield digest, number << 32 | row

    def _shown(self, latest: Iterable[tuple[bytes, int]]) -> Iterator[Proven]:
        groups: dict[tuple[bytes, int], int] = {}
        for digest, packed in latest:
            page, row = self._pages[packed >> 32], packed & 0xFFFFFFFF
            if page.outcomes[row] == NOT_DELIVERED:
                continue
            group = -1 if page.recovered else groups.setdefault((page.instance, page.n), len(groups))
            destination = page.destinations[row] if page.destinations else -1
            replay = page.replays[row] if page.replays else 0
            partition, offset = page.partition, page.offsets[row]
            yield Proven(digest, page.outcomes[row], partition, offset, destination, group, replay, page.at, page.begun)

    def open_ranges(self) -> list[InputRange]:
        """Return the inputs of transactions that were begun, and of which nothing says how they ended.

        A begin that a newer instance of its transactional id follows in the same partition was ended by it.
        """
        return [
            taken
            for begin in self._last.values()
            if self._sealed.get(begin.instance, -1) < begin.n
            and (begin.instance, begin.n) not in self._settled
            for taken in begin.inputs
            if taken.first < taken.next
        ]

    def _begin(self, monitor_partition: int, page: Page) -> Begin | None:
        """Return the begin of the transaction that a page with deaths is of; compaction keeps an instance's last one only."""
        if DEAD not in page.outcomes or page.recovery is not None:
            return None
        begins = (begin for (number, _), begin in self._last.items() if number == monitor_partition)
        return next((begin for begin in begins if (begin.instance, begin.n) == (page.instance, page.n)), None)

    def _counts(self, page: _Rows) -> bool:
        if page.proof is not Proof.SEALED:
            return True
        if (page.instance, page.n) in self._settled:
            return False
        return page.n <= self._sealed.get(page.instance, -1) or page.n < self._begun.get(page.instance, -1)
