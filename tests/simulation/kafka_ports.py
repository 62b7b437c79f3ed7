"""What stands in for the Kafka client while a world is installed: production's own adapters run on it unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import relay.kafka.appender
import relay.kafka.appending
import relay.kafka.control
import relay.kafka.group
import relay.kafka.reading
import relay.kafka.transactions
import relay.run.assembly
import relay.run.following
from relay.kafka.topics import TopicFacts
from relay.monitor.checkpoint import Loaded, _staleness
from relay.monitor.index import Budget, Change, DedupIndex, open_index
from tests.simulation.consumer import SimConsumer
from tests.simulation.producer import SimProducer
from tests.simulation.scheduler import Process
from tests.simulation.site import Cluster

PRODUCERS = (relay.kafka.appender, relay.kafka.appending, relay.kafka.control, relay.kafka.transactions)
CONSUMERS = (relay.kafka.group, relay.kafka.reading)


class SimTopics:
    """Takes the place of ``relay.kafka.topics.Topics``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe(self, names: Iterable[str], *, settings: bool = True, wait_s: float = 0.0) -> dict[str, TopicFacts]:
        """Return the facts of the topics that exist, known at once everywhere; with their settings in no time, which leaves runs as they were."""
        world = self._cluster.world
        if world.current is not None and not settings:
            world.sleep(0.002)
        known = self._cluster.topics.by_name
        return {
            name: TopicFacts(name, known[name].topic_id, len(known[name].partitions), 1, {"cleanup.policy": "delete"} if settings else {})
            for name in sorted(set(names))
            if name in known
        }

    def ids(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the ids of the topics that exist; it takes no time, so that asking often leaves runs as they were."""
        known = self._cluster.topics.by_name
        return {name: known[name].topic_id for name in names if name in known}

    def close(self) -> None:
        """Nothing to flush."""


class SimFollowing:
    """Takes the place of ``Following``; it takes no time, so that runs without orders are as they were.

    What is new is heard ``late_s`` after it was written, but where all is asked for, and at first.
    """

    def __init__(self, cluster: Cluster, topic: str, late_s: float) -> None:
        self._partition = cluster.topics.by_name[topic].partitions[0]
        self._world = cluster.world
        self._late_s = late_s
        self._next = 0

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """Return what came since the last call."""
        return self._read(self._world.now - self._late_s) if self._next else self.to_end()

    def to_end(self) -> list[tuple[bytes, bytes | None]]:
        """Return all that came since the last call."""
        return self._read(self._world.now)

    def _read(self, until: float) -> list[tuple[bytes, bytes | None]]:
        found, end = self._partition.read(self._next, 1_000_000, committed=False)
        heard = [record for record in found if record.stored_at <= until]
        self._next = end if len(heard) == len(found) else found[len(heard)].offset()
        return [(record.key() or b"", record.value()) for record in heard]

    def close(self) -> None:
        """Nothing is held."""


class Disks:
    """What processes keep on disk, by directory; it outlives them."""

    def __init__(self) -> None:
        self.saved: dict[tuple[str, int], tuple[list[Change], list[str], int, int]] = {}

    def lose(self) -> None:
        """All state directories are gone."""
        self.saved.clear()


class SimCheckpoints:
    """Takes the place of ``CheckpointStore``: an index in memory whose saves are durable at once or not at all."""

    def __init__(self, disks: Disks, process: Process, directory: Any, *, watermarks: Any) -> None:
        self._disks = disks
        self._process = process
        self._directory = directory
        self._watermarks = watermarks
        self._firsts: dict[int, int] = {}

    def open(self, partition: int) -> tuple[DedupIndex, int]:
        """Return the index and the monitor offset up to which it is complete."""
        index = open_index(self._directory, partition, Budget(1_000_000))
        found = self._disks.saved.get((str(self._directory), partition))
        position = 0
        if found is not None:
            changes, topics, position, first = found
            if _staleness(Loaded(position, first, ""), *self._watermarks(partition)):
                position = 0
            else:
                index.adopt(topics)
                for change in changes:
                    index.apply(change)
                self._firsts[partition] = first
        return index, position

    def save(self, index: DedupIndex, monitor_offset: int) -> None:
        """Keep the whole index."""
        self._process.world.call()
        first = self._firsts.setdefault(index.partition, monitor_offset)
        self._disks.saved[str(self._directory), index.partition] = (
            [Change(change.kind, bytes(change.data)) for change in index.chunks()],
            list(index.topics),
            monitor_offset,
            first,
        )

    def renew(self, index: DedupIndex) -> None:
        """An index in memory keeps what it has."""

    def close(self, index: DedupIndex) -> None:
        """Let go of an index."""
        index.close()
        self._firsts.pop(index.partition, None)


def stand_ins(cluster: Cluster, disks: Disks, heard_late: Callable[[], float] = float) -> list[tuple[Any, str, Any]]:
    """Return (module, name, stand-in) for ``installed``; who follows a topic hears by so many seconds late."""

    def producer(settings: Mapping[str, Any], **_: Any) -> SimProducer:
        return SimProducer(cluster, settings)

    def consumer(settings: Mapping[str, Any], **_: Any) -> SimConsumer:
        return SimConsumer(cluster, settings)

    def topics(*_: Any, **__: Any) -> SimTopics:
        return SimTopics(cluster)

    def checkpoints(directory: Any, *, watermarks: Any, **_: Any) -> SimCheckpoints:
        assert cluster.world.current is not None
        return SimCheckpoints(disks, cluster.world.current.process, directory, watermarks=watermarks)

    def following(_settings: Mapping[str, Any], topic: str, **_: Any) -> SimFollowing:
        return SimFollowing(cluster, topic, heard_late())

    return [
        *[(module, "Producer", producer) for module in PRODUCERS],
        *[(module, "Consumer", consumer) for module in CONSUMERS],
        (relay.kafka.appender, "Topics", topics),
        (relay.run.assembly, "Topics", topics),
        (relay.run.following, "Following", following),
        (relay.run.assembly, "CheckpointStore", checkpoints),
    ]
