"""As much of Kafka as a recovery meets, in memory: transactions, fencing, read_committed, and a log that may begin late."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from relay.delivery.deadletter import Letters
from relay.message.envelope import Headers
from relay.message.errors import Fenced, Stuck
from relay.message.record import Appended, LogPartition

LETTERS = Letters(route="main", target="out", group="g", topic="dead", partitions=1)


@dataclass(eq=False)
class Unit:
    """One transaction: None is open, else committed or not."""

    committed: bool | None = None
    offsets: dict[LogPartition, tuple[int, str]] = field(default_factory=dict)


class Stored:
    def __init__(
        self, place: LogPartition, offset: int, key: bytes | None, value: bytes | None, headers: Headers, unit: Unit
    ) -> None:
        self._fields = (place, offset, key, value, headers)
        self.unit = unit
        self.time = (1, 1000)

    def topic(self) -> str:
        return self._fields[0].topic

    def partition(self) -> int:
        return self._fields[0].partition

    def offset(self) -> int:
        return self._fields[1]

    def key(self) -> bytes | None:
        return self._fields[2]

    def value(self) -> bytes | None:
        return self._fields[3]

    def headers(self) -> Headers:
        return self._fields[4]

    def timestamp(self) -> tuple[int, int]:
        return self.time

    def leader_epoch(self) -> int:
        return 0


class MemoryKafka:
    """The cluster; it outlives the processes that use it. ``appending`` is told of every record before it is taken."""

    def __init__(self) -> None:
        self.appending: Callable[[str, LogPartition, bytes | None], object] = lambda *_: None
        self.logs: dict[LogPartition, list[Stored]] = {}
        self.low: dict[LogPartition, int] = {}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Unit] = {}
        self.group: dict[LogPartition, tuple[int, str]] = {}
        self.member = b"member"
        self.former: set[bytes] = set()
        self.batch = 1_000_000
        self.stays = 0
        self.lost_at: int | None = None

    def transaction(self, transactional_id: str) -> MemoryTransaction:
        return MemoryTransaction(self, transactional_id)

    def reader(self, *, committed: bool, meanwhile: Callable[[], object] = bool) -> MemoryReader:
        return MemoryReader(self, committed, meanwhile)

    def end(self, transactional_id: str, *, commit: bool) -> None:
        """Whoever sends it: an EndTxn ends what is open under the id."""
        unit = self.open.pop(transactional_id, None)
        if unit is not None:
            unit.committed = commit
            if commit:
                self.group.update(unit.offsets)

    def visible(self, place: LogPartition) -> list[Stored]:
        return [one for one in self.logs.get(place, []) if one.unit.committed and one.offset() >= self.low.get(place, 0)]

    # The consumer group, as far as recovery asks it.

    def membership(self) -> bytes:
        return self.member

    def stay(self) -> None:
        """A poll of the group's; at the one that ``lost_at`` names the group gives its partitions out anew."""
        self.stays += 1
        if self.stays == self.lost_at:
            raise Fenced("another assignment")

    def rebalance(self) -> None:
        """The group goes on to another generation, with the same member in it."""
        self.former.add(self.member)
        self.member += b"'"

    def committed(self, partitions: Sequence[LogPartition]) -> dict[LogPartition, tuple[int, str]]:
        return {p: self.group[p] for p in partitions if p in self.group}


class MemoryTransaction:
    def __init__(self, kafka: MemoryKafka, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.acked: dict[LogPartition, int] = {}
        self._kafka = kafka
        self._epoch = -1
        self._begun: Unit | None = None

    def init(self) -> None:
        self._kafka.end(self.transactional_id, commit=False)
        self._epoch = self._kafka.epochs[self.transactional_id] = self._kafka.epochs.get(self.transactional_id, 0) + 1

    def begin(self) -> None:
        self._begun = None

    def produce(
        self,
        partition: LogPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        self._kafka.appending(self.transactional_id, partition, key)
        unit = self._unit()
        log = self._kafka.logs.setdefault(partition, [])
        log.append(Stored(partition, len(log), key, value, headers or [], unit))
        self.acked[partition] = len(log) - 1

    def produce_all(self, partition: LogPartition, records: Iterable[Appended]) -> None:
        for key, value, headers, timestamp_ms in records:
            self.produce(partition, key, value, headers, timestamp_ms)

    def flush(self) -> None:
        self._current()

    def send_offsets(
        self, positions: Mapping[LogPartition, int], notes: Mapping[LogPartition, str], membership: bytes
    ) -> None:
        if membership in self._kafka.former:
            raise Fenced("the group knows this member under another generation by now")
        self._unit().offsets.update({p: (offset, notes.get(p, "")) for p, offset in positions.items()})

    def commit(self) -> None:
        self._unit()
        self._kafka.end(self.transactional_id, commit=True)
        self._begun = None

    def abort(self) -> None:
        self._unit()
        self._kafka.end(self.transactional_id, commit=False)
        self._begun = None

    def discard(self) -> None:
        self._epoch = -1

    def _current(self) -> None:
        if self._kafka.epochs.get(self.transactional_id) != self._epoch:
            raise Fenced(f"{self.transactional_id} has a newer instance")

    def _unit(self) -> Unit:
        """Partition verification: what was ended from outside does not go on."""
        self._current()
        if self._begun is None:
            self._begun = self._kafka.open[self.transactional_id] = Unit()
        if self._begun.committed is not None:
            raise Fenced("the transaction was ended from outside")
        return self._begun


class MemoryReader:
    def __init__(self, kafka: MemoryKafka, committed: bool, meanwhile: Callable[[], object] = bool) -> None:
        self._kafka = kafka
        self._committed = committed
        self._meanwhile = meanwhile

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def watermarks(self, partition: LogPartition) -> tuple[int, int]:
        return self._kafka.low.get(partition, 0), len(self._kafka.logs.get(partition, []))

    def ends(self, places: Collection[LogPartition], _wait_s: float | None = None) -> dict[LogPartition, int]:
        return {place: self._stable_end(place) for place in places}

    def _stable_end(self, place: LogPartition) -> int:
        records = self._kafka.logs.get(place, [])
        undecided = [one.offset() for one in records if one.unit.committed is None and self._committed]
        return min(undecided, default=len(records))

    def partitions(self, topic: str) -> int:
        return 1 + max((place.partition for place in self._kafka.logs if place.topic == topic), default=-1)

    def still_open(self, ends: Mapping[LogPartition, int], _wait_s: float) -> set[LogPartition]:
        return {
            place
            for place, end in ends.items()
            if any(one.unit.committed is None for one in self._kafka.logs.get(place, [])[:end])
        }

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Stored]]:
        for place, (first, end) in ranges.items():
            records = self._kafka.logs.get(place, [])[first:end]
            if self._committed and any(one.unit.committed is None for one in records):
                raise Stuck(f"{place} has an open transaction")
            seen = [one for one in records if one.unit.committed or not self._committed]
            for start in range(0, max(len(seen), 1), self._kafka.batch):
                yield seen[start : start + self._kafka.batch]
                self._meanwhile()
