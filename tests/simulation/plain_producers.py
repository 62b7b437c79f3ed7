"""Publishers without a database: CloudEvents in the log, some twice, some in Kafka transactions that abort, some too large.

They are not under test, so they speak to the broker directly; what they leave in the log is what counts.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.message.envelope import Headers
from relay.message.record import LogPartition
from tests.simulation.broker import NewRecord
from tests.simulation.crew import LOG, OUTPUT
from tests.simulation.scheduler import World
from tests.simulation.site import Cluster

LARGE_BYTES = 2_000
"""What the output topic does not take and the dead-letter topic does."""


def take_large_ones(cluster: Cluster) -> None:
    """From now on the output takes what it refused."""
    for partition in cluster.topics.by_name[OUTPUT].partitions:
        partition.take_up_to(1_000_000)


class PlainProducers:
    """Writes ``messages`` messages of several sources within ``seconds``."""

    def __init__(self, world: World, cluster: Cluster, *, messages: int, seconds: float) -> None:
        rng = world.rng
        self._world = world
        self._cluster = cluster
        self._partitions = len(cluster.topics.by_name[LOG].partitions)
        self.sources = [f"/p{n}" for n in range(rng.randrange(1, 5))]
        self._numbers = dict.fromkeys(self.sources, 0)
        self._spread = rng.random() < 0.3
        self._repeats = rng.choice((0.0, 0.05, 0.3))
        self._aborts = rng.choice((0.0, 0.2, 0.5))
        self._larges = rng.choice((0.0, 0.0, 0.03))
        self._sent: list[tuple[int, NewRecord]] = []
        self._producer_ids = 50_000
        self.sent = 0
        self.further_headers: Callable[[], Headers] = list
        """What else a message asks for."""
        # Crowded, batch follows batch; thinly spread, the relay idles between them.
        crowds = [seconds * rng.random() for _ in range(rng.randrange(1, 4))] if rng.random() < 0.7 else []
        while self.sent < messages:
            at = rng.choice(crowds) + rng.random() if crowds else seconds * rng.random()
            world.at(at, self._burst, rng.randrange(1, 8))
            self.sent += 4

    def forget(self) -> None:
        """Send nothing again of what was sent before."""
        self._sent.clear()

    def _burst(self, count: int) -> None:
        """Some records of one source into one partition, perhaps as a Kafka transaction that stays open for a while."""
        rng = self._world.rng
        source = rng.choice(self.sources)
        home = rng.randrange(self._partitions) if self._spread else self.sources.index(source) % self._partitions
        records = [self._record(source, home) for _ in range(count)]
        partition = self._cluster.topics.partition(LogPartition(LOG, home))
        if rng.random() >= self._aborts:
            partition.append(records)
            return
        self._producer_ids += 1
        producer_id, open_s = self._producer_ids, rng.choice((0.001, 0.2, 3.0)) * rng.random()
        for sequence, record in enumerate(records):
            self._world.at(open_s * sequence / count, self._append_open, partition, record, producer_id, sequence)
        commit = rng.random() < 0.5
        self._world.at(open_s + 0.01, lambda: partition.end_transaction(producer_id, 0, commit=commit))

    def _append_open(self, partition, record, producer_id: int, sequence: int) -> None:  # type: ignore[no-untyped-def]
        partition.append([record], producer_id, 0, sequence, "plain", lambda *_: 0)

    def _record(self, source: str, home: int) -> NewRecord:
        rng = self._world.rng
        earlier = [record for place, record in self._sent if place == home]
        if earlier and rng.random() < self._repeats:
            return rng.choice(earlier)
        self._numbers[source] += 1
        number = self._numbers[source]
        large = rng.random() < self._larges
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", str(number).encode()),
            ("ce_source", source.encode()),
            ("ce_type", b"simulated"),
            *self.further_headers(),
        ]
        record = NewRecord(source.encode(), b"x" * (LARGE_BYTES if large else 5), headers, 1_800_000_000_000)
        self._sent.append((home, record))
        return record
