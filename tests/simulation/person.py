"""The person who reads what a worker stopped with, and does what the sentence says: nothing else is known to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Final

from relay.message.errors import RelayError
from relay.message.record import LogPartition
from relay.monitor.resolution import (
    Kind,
    Resolution,
    Resolutions,
    Span,
    Subject,
    Told,
    of_offsets,
    parse,
    uncovered,
)
from relay.run.assembly import RoutePorts
from relay.run.book import ControlBook
from relay.run.status_record import KEY_PREFIX, PartitionStatus, decode
from relay.world import clock, randomness
from tests.simulation.crew import LOG, RELAY, Crew
from tests.simulation.scheduler import World
from tests.simulation.site import Cluster

LOST: Final = re.compile(r"lost:\S+")
NEW_NAME: Final = "give the route a new name"
LOOK_AGAIN: Final = ("cannot be read at its position", "above the log's end")
RETRY_S: Final = 1.0
LOOK_S: Final = 3.0


class Person:
    """Lets go what has left the log, under the names that it is shown, and gives the route of a new topic a new name."""

    def __init__(self, world: World, cluster: Cluster, crew: Crew, rng: Random, rename: Callable[[], None]) -> None:
        self.let_go: list[Subject] = []
        self.refused: list[str] = []
        self._world = world
        self._cluster = cluster
        self._crew = crew
        self._rng = rng
        self._rename = rename
        self._renaming = False
        self._process = world.process("person")
        self._began_on = {crew.route: self._topic_id(LOG)}

    def hears(self, said: RelayError) -> bool:
        """Does the sentence say what to do? Then it is done, sooner or later."""
        words = str(said)
        name = LOST.search(words)
        if name is not None:
            self._let_it_go_soon(parse(name[0]))
        elif NEW_NAME in words:
            if not self._renaming:
                self._renaming = True
                self._soon(self._give_new_name)
        else:
            return any(sentence in words for sentence in LOOK_AGAIN)
        return True

    def watch(self, until: float) -> None:
        """Look now and then at what living workers say they wait for, as `relay status` shows it."""
        decided = Resolutions()
        latest: dict[bytes, bytes | None] = {}
        for record in self._cluster.topics.by_name[f"{RELAY}.control"].partitions[0].visible():
            key = record.key() or b""
            decided.add(key, record.value())
            latest[key] = record.value()
        for status in (decode(value) for key, value in latest.items() if key.startswith(KEY_PREFIX) and value):
            if status is not None and status.state == "running" and status.route == self._crew.route:
                for one in status.partitions:
                    self._look_at(status.route, one, decided)
        if self._world.now < until:
            self._world.at(LOOK_S, self.watch, until)

    def _look_at(self, route: str, one: PartitionStatus, decided: Resolutions) -> None:
        if one.lost_first is None or one.lost_next is None:
            return
        place = LogPartition(one.topic, one.partition)
        told = [Span(other.subject.first, other.subject.next) for other in decided.of_route(Kind.LOST, route, [place])]
        for span in uncovered(one.lost_first, one.lost_next, told):
            subject = of_offsets(Kind.LOST, route, place, *span)
            self._let_it_go_soon(subject)

    def _give_new_name(self) -> None:
        self._rename()
        self._began_on[self._crew.route] = self._topic_id(LOG)
        self._renaming = False

    def _soon(self, action: Callable[[], None]) -> None:
        self._world.at(self._rng.uniform(0.1, 4.0), action)

    def _let_it_go_soon(self, subject: Subject) -> None:
        topic_id = self._topic_id(subject.place.topic)
        self._soon(lambda: self._let_it_go(subject, topic_id))

    def _let_it_go(self, subject: Subject, topic_id: bytes) -> None:
        now = self._topic_id(subject.place.topic)
        if subject in self.let_go or topic_id != now:
            return  # decided, or of a topic that is no more: `relay indoubt resolve` refuses that
        if self._cluster.topics.partition(subject.place).start < subject.next:
            if self._began_on[subject.route] != now:
                return  # said of the topic that is no more, and shown until its worker learns of the other: refused, too
            self.refused.append(f"{subject.text} names what can still be read")
        self.let_go.append(subject)
        self._world.spawn(self._process, "writing", lambda: self._write(subject))

    def _topic_id(self, name: str) -> bytes:
        return self._cluster.topics.by_name[name].topic_id

    def _write(self, subject: Subject) -> None:
        config = self._crew.config
        made = Resolution(randomness.uuid_bytes(), subject, Told.ABORT, "a person", "simulated", clock.wall_ms(), "")
        written = None
        while written is None:
            try:
                written = ControlBook(RoutePorts(config, next(iter(config.routes.values()))).control, "a person").write(made)
            except RelayError:
                clock.sleep(RETRY_S)
