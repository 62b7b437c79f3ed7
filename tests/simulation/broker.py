"""Partitions of the simulated broker: what is appended, who may append it, and what a reader may see of it.

Facts: Kafka's log and producer state (KIP-98), partition verification (KIP-890 part 1), the log cleaner. There is one
replica that never forgets what it acknowledged, so the high watermark is the end of the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError

from relay.message.envelope import Headers
from relay.message.record import LogPartition
from tests.simulation.scheduler import World

NONE: Final = 0
KEPT_BATCHES: Final = 5
"""Of each producer the broker remembers its last five batches, to tell a repeat from a gap."""

Verify = Callable[[str, int, int, Any], int]
"""Given transactional id, producer id, epoch and partition: the coordinator's word on whether it is in the transaction."""


class NewRecord(NamedTuple):
    """A record on its way to the broker."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int


class Placed:
    """What has a place in the log, as the client's ``Message`` tells it."""

    __slots__ = ("_offset", "_place")

    def __init__(self, place: LogPartition, offset: int) -> None:
        self._place = place
        self._offset = offset

    def topic(self) -> str:
        return self._place.topic

    def partition(self) -> int:
        return self._place.partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return (0, 0)  # not available: nobody here is told the brokers' time


class StoredRecord(Placed):
    """A record of the log; to a reader it is the client's ``Message``."""

    __slots__ = ("_headers", "_key", "_timestamp_ms", "_value", "aborted", "control", "decided_at",
                 "epoch", "left_out", "producer_id", "size", "stored_at", "transactional")  # fmt: skip

    def __init__(self, place: LogPartition, offset: int, record: NewRecord, producer_id: int, epoch: int) -> None:
        super().__init__(place, offset)
        self._key, self._value, self._headers, self._timestamp_ms = record
        self.producer_id = producer_id
        self.epoch = epoch
        self.transactional = False
        self.control: bool | None = None
        self.aborted = False
        self.left_out = False
        """Committed by the coordinator's word, but the marker was left out here: whatever follows may abort it."""
        self.stored_at = 0.0
        self.decided_at: float | None = None

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return (1, self._timestamp_ms)

    def leader_epoch(self) -> int:
        return 0

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value or b"")


class ProducerState:
    """What a partition knows of one producer id."""

    __slots__ = ("batches", "epoch", "open_from")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int, int]] = deque(maxlen=KEPT_BATCHES)
        self.open_from: int | None = None

    def start_epoch(self, epoch: int) -> None:
        """A newer epoch counts its sequence numbers from zero."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.batches.clear()


class Partition:
    """One partition's log."""

    def __init__(self, world: World, place: LogPartition, bytes_max: int) -> None:
        self.place = place
        self.records: list[StoredRecord] = []
        self.offsets: list[int] = []
        self.start = 0
        self.end = 0
        self._world = world
        self._bytes_max = bytes_max
        self._producers: dict[int, ProducerState] = {}
        self._unverified: dict[int, tuple[int, int]] = {}

    @property
    def stable_end(self) -> int:
        """The last stable offset: the first offset of the oldest open transaction, or the end."""
        return min((s.open_from for s in self._producers.values() if s.open_from is not None), default=self.end)

    def append(
        self,
        records: Sequence[NewRecord],
        producer_id: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional_id: str | None = None,
        verify: Verify | None = None,
    ) -> tuple[int, int]:
        """Append a batch, all of it or nothing; return an error code and the batch's first offset."""
        lowest = sequence if transactional_id is None else self._lowest(producer_id, epoch, sequence)
        if any(len(record.value or b"") > self._bytes_max for record in records):
            return KafkaError.MSG_SIZE_TOO_LARGE, -1
        if producer_id < 0:
            return NONE, self._store(records, producer_id, epoch, transactional=False)
        state = self._producers.get(producer_id)
        if state is not None and epoch < state.epoch:
            return KafkaError.INVALID_PRODUCER_EPOCH, -1
        known = [] if state is None or epoch > state.epoch else state.batches
        for first, last, offset in known:
            if (first, last) == (sequence, sequence + len(records) - 1):
                return NONE, offset
        refused = NONE
        if transactional_id is not None and (state is None or state.open_from is None or epoch > state.epoch):
            assert verify is not None
            refused = verify(transactional_id, producer_id, epoch, self.place)
        refused = refused or self._gap(state, epoch, sequence, lowest)
        if refused:
            return refused, -1
        if state is None:
            state = self._producers[producer_id] = ProducerState(epoch)
        state.start_epoch(epoch)
        offset = self._store(records, producer_id, epoch, transactional=transactional_id is not None)
        state.batches.append((sequence, sequence + len(records) - 1, offset))
        if transactional_id is not None and state.open_from is None:
            state.open_from = offset
        return NONE, offset

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Append a control record; it ends what the producer has open here and fences its older epochs."""
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerState(epoch)
        if epoch < state.epoch:
            return  # a marker of an older epoch has nothing to end any more
        if state.open_from is not None:
            place = bisect_left(self.offsets, state.open_from)
            for record in self.records[place:]:
                if record.producer_id == producer_id and record.transactional and record.decided_at is None:
                    record.decided_at = self._world.now
                    record.aborted = not commit
        state.start_epoch(epoch)
        state.open_from = None
        self._store([NewRecord(None, None, None, 0)], producer_id, epoch, transactional=True)
        marker = self.records[-1]
        marker.control = commit
        marker.decided_at = self._world.now

    def leave_out(self, producer_id: int) -> None:
        """A commit ends without its marker here: what the producer has open stays open."""
        for record in self.records:
            if record.producer_id == producer_id and record.transactional and record.decided_at is None:
                record.left_out = True

    def read(self, position: int, count: int, *, committed: bool) -> tuple[list[StoredRecord], int]:
        """Return up to ``count`` records at and above ``position`` that the reader may see, and where to read on."""
        end = self.stable_end if committed else self.end
        if position >= end:
            return [], position
        found: list[StoredRecord] = []
        for place in range(bisect_left(self.offsets, position), len(self.records)):
            record = self.records[place]
            offset = self.offsets[place]
            if offset >= end:
                break
            if len(found) >= count:
                return found, offset
            if record.control is None and not (committed and record.aborted):
                found.append(record)
        return found, end

    def take_up_to(self, bytes_max: int) -> None:
        """Take larger records from now on, or only smaller ones."""
        self._bytes_max = bytes_max

    def visible(self) -> Iterable[StoredRecord]:
        """Every record that a read_committed reader can see now."""
        return self.read(self.start, len(self.records) + 1, committed=True)[0]

    def drop_below(self, offset: int) -> None:
        """Retention: the log starts at ``offset``; never above the last stable offset."""
        self.start = max(self.start, min(offset, self.stable_end))
        place = bisect_left(self.offsets, self.start)
        del self.records[:place], self.offsets[:place]

    def compact(self, below: int, stored_before: float) -> int:
        """Keep the last committed record of each key below a bound under the last stable offset; return what went.

        Aborted records and control records below the bound go as well; what has no key stays. ``stored_before`` is
        the compaction lag: nothing stored at or after that time is touched.
        """
        bound = min(below, self.stable_end)
        old = next((r.offset() for r in self.records if r.stored_at >= stored_before), self.end)
        bound = min(bound, old)
        last: dict[bytes, int] = {}
        for record in self.records:
            key = record.key()
            if record.offset() < bound and key is not None and not record.aborted and record.control is None:
                last[key] = record.offset()
        kept = [record for record in self.records if record.offset() >= bound or self._survives(record, last)]
        gone = len(self.records) - len(kept)
        self.records = kept
        self.offsets = [record.offset() for record in kept]
        return gone

    @staticmethod
    def _survives(record: StoredRecord, last: dict[bytes, int]) -> bool:
        if record.control is not None or record.aborted:
            return False
        key = record.key()
        return key is None or last.get(key) == record.offset()

    def _lowest(self, producer_id: int, epoch: int, sequence: int) -> int:
        """A transaction's first write that follows a refused one of the same producer is not the first (KAFKA-14884)."""
        known, lowest = self._unverified.get(producer_id, (epoch, sequence))
        lowest = min(lowest, sequence) if known == epoch else sequence
        self._unverified[producer_id] = (epoch, lowest)
        return lowest

    @staticmethod
    def _gap(state: ProducerState | None, epoch: int, sequence: int, lowest: int) -> int:
        if sequence > lowest and (state is None or epoch > state.epoch):
            return KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        if state is None:
            return NONE  # an unknown producer may begin anywhere (KIP-360)
        if epoch > state.epoch:
            return NONE if sequence == 0 else KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not state.batches:
            return NONE
        return NONE if sequence == state.batches[-1][1] + 1 else KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER

    def _store(self, records: Sequence[NewRecord], producer_id: int, epoch: int, *, transactional: bool) -> int:
        first = self.end
        now = self._world.now
        for offset, record in enumerate(records, first):
            stored = StoredRecord(self.place, offset, record, producer_id, epoch)
            stored.transactional = transactional
            stored.stored_at = now
            if not transactional:
                stored.decided_at = now
            self.records.append(stored)
            self.offsets.append(offset)
        self.end = first + len(records)
        return first


class Topic:
    """A topic with its id."""

    def __init__(self, world: World, name: str, partitions: int, bytes_max: int) -> None:
        self.name = name
        self.topic_id = world.rng.randbytes(16)
        self.known_at = 0.0
        """When consumers that read a namesake before learn that this one is there."""
        self.partitions = [Partition(world, LogPartition(name, p), bytes_max) for p in range(partitions)]


class Topics:
    """All topics of the broker."""

    def __init__(self, world: World) -> None:
        self.by_name: dict[str, Topic] = {}
        self._world = world

    def create(self, name: str, partitions: int, bytes_max: int = 1_000_000) -> Topic:
        """Create a topic."""
        made = self.by_name[name] = Topic(self._world, name, partitions, bytes_max)
        return made

    def partition(self, place: LogPartition) -> Partition:
        """Return a partition; KeyError if there is none."""
        return self.by_name[place.topic].partitions[place.partition]
