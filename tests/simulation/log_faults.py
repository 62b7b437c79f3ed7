"""What may happen to the log itself under a running route: retention trims it, or it is deleted and created again.

Its numbers come from a stream of their own, so that every other kind of run stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from tests.simulation.broker import NewRecord, Partition, StoredRecord
from tests.simulation.crew import LOG, RELAY, ROUTE
from tests.simulation.scheduler import World
from tests.simulation.site import Cluster

SECOND_LIFE: Final = 1_000_000
"""To the auditor, the offsets of the topic that was created again count from here."""
NEW_RECORDS_MAX: Final = 60
AGAIN: Final = "again"
"""The name that the route gets with the new topic."""


class LogFaults:
    """Draws what happens to the log; keeps what has left it, for the auditor.

    ``stored`` tells where the route stands, by partition; ``forget`` makes producers repeat nothing of what they sent.
    """

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        rng: Random,
        stored: Callable[[], Mapping[int, int]],
        forget: Callable[[], None],
    ) -> None:
        self.gone: list[StoredRecord] = []
        self.before: list[StoredRecord] = []
        """What the topic held when it was deleted, or had held: offsets of its first life."""
        self.created_again_at: float | None = None
        self.on_created_again: list[Callable[[], None]] = []
        self._world = world
        self._cluster = cluster
        self._rng = rng
        self._stored = stored
        self._forget = forget
        self._until = 0.0
        self.names = rng.choice((["trimmed_delivered"], ["trimmed"], ["trimmed"], ["created_again"], ["created_again", "trimmed"]))
        self.hold_bytes = rng.choice((None, None, 0, 200))
        """Payload of held messages that a worker keeps: little makes it read them again after their outcome."""

    def plan(self, until: float) -> None:
        """Draw when it happens, before ``until``."""
        self._until = until
        strikes = {"created_again": (self._create_again, 1), "trimmed": (self._trim_anything, 3), "trimmed_delivered": (self._trim_delivered, 5)}
        for name in self.names:
            strike, most = strikes[name]
            for _ in range(self._rng.randint(1, most)):
                self._world.at(self._rng.uniform(0.5, until), strike)

    def _trim_delivered(self) -> None:
        """Retention that is long enough: it reaches the route's position at most."""
        stored = self._stored()
        for partition in self._partitions():
            self._trim(partition, stored.get(partition.place.partition, 0))

    def _trim_anything(self) -> None:
        """Retention that is too short: it passes the position of some partitions."""
        stored = self._stored()
        for partition in self._partitions():
            position = min(stored.get(partition.place.partition, 0), partition.stable_end)
            low = self._rng.choice((position, self._rng.randint(position, partition.stable_end), partition.stable_end))
            if self._rng.random() < 0.7:
                self._trim(partition, low)

    def _trim(self, partition: Partition, low: int) -> None:
        if not self._has_started():
            return
        there = list(partition.records)
        partition.drop_below(low)
        self.gone += [record for record in there if record.offset() < partition.start]
        self._world.trace("trimmed", partition.place.topic, partition.place.partition, partition.start)

    def _create_again(self) -> None:
        """Delete the topic with all it held and create one of the same name; its group's offsets go with it.

        Consumers of the first go on in the second where they stood, once they have learned who leads it: so do those of
        librdkafka 2.16, without a word, if it is long enough by then.
        """
        if not self._has_started():
            if self._world.now < self._until:
                self._world.at(0.5, self._create_again)
            return
        old = self._partitions()
        self.before += [*self.gone, *(record for partition in old for record in partition.records)]
        self.gone = []
        made = self._cluster.topics.create(LOG, len(old))
        made.known_at = self._world.now + self._rng.choice((0.0, 0.5, 3.0)) * self._rng.random()
        for group in self._cluster.groups.by_name.values():
            group.forget(LOG)
        self._forget()
        self.created_again_at = self._world.now
        self._world.trace("created again", LOG)
        for partition, former in zip(made.partitions, old, strict=True):
            count = min(self._rng.choice((0, 3, former.end + 5, former.end + 5)), NEW_RECORDS_MAX)
            source = f"/again/{partition.place.partition}".encode()
            for number in range(count):
                headers = [("ce_id", str(number).encode()), ("ce_source", source)]
                partition.append([NewRecord(source, b"again", headers, 0)])
        for told in self.on_created_again:
            told()

    def _has_started(self) -> bool:
        """Has the route recorded where it starts? Before that it begins wherever the log does, and no topic is new."""
        route = ROUTE if self.created_again_at is None else AGAIN
        control = self._cluster.topics.by_name[f"{RELAY}.control"].partitions[0].visible()
        return any(record.key() == f"start/{route}".encode() for record in control)

    def _partitions(self) -> list[Partition]:
        return self._cluster.topics.by_name[LOG].partitions
