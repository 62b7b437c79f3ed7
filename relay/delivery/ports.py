"""What delivery needs of Kafka; ``relay.kafka`` has the real ones, the simulator others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from relay.log.anchor import Anchor
from relay.message.envelope import Headers
from relay.message.record import Appended, LogPartition, Record
from relay.monitor.resolution import Resolution, Resolutions


class Reader(Protocol):
    """Reads partitions by hand up to a given end."""

    def watermarks(self, partition: LogPartition) -> tuple[int, int]: ...
    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[Sequence[Record]]: ...
    def ends(self, places: Collection[LogPartition], wait_s: float | None = None) -> dict[LogPartition, int]: ...
    def partitions(self, topic: str) -> int: ...
    def still_open(self, ends: Mapping[LogPartition, int], wait_s: float) -> set[LogPartition]: ...


class Transaction(Protocol):
    """One instance of the transactional producer; thrown away after anything but a clean commit."""

    transactional_id: str
    acked: dict[LogPartition, int]
    meanwhile: Callable[[], bool] | None

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def produce(
        self,
        partition: LogPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> None: ...
    def produce_all(self, partition: LogPartition, records: Iterable[Appended]) -> None: ...
    def flush(self) -> None: ...
    def send_offsets(
        self, positions: Mapping[LogPartition, int], notes: Mapping[LogPartition, str], membership: bytes
    ) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def discard(self) -> None: ...


class Group(Protocol):
    """The consumer group's member, as far as recovery asks it."""

    def membership(self) -> bytes: ...
    def stay(self) -> None: ...
    def committed(self, partitions: Sequence[LogPartition]) -> dict[LogPartition, tuple[int, str]]: ...


class KafkaPorts(Protocol):
    """Makes transactions and readers."""

    def transaction(self, transactional_id: str) -> Transaction: ...
    def reader(
        self, *, committed: bool, meanwhile: Callable[[], object] = ...
    ) -> AbstractContextManager[Reader]: ...


class Book(Protocol):
    """What persons have decided about things in doubt, and what owners did about it."""

    def read(self) -> Resolutions: ...
    def obey(self, resolution: Resolution, done: str) -> None: ...


Starts = Callable[
    [Mapping[LogPartition, int | None], Collection[LogPartition], Mapping[LogPartition, Anchor]], dict[LogPartition, int]
]
"""Given each partition's stored position (None: nothing known), the partitions that were delivered from before, and which record
lay below a position when it was stored, say where to start; raises Stopped."""
