"""One seed of a route into a queue: while it puts, persons pause and resume publishers, and the queue gets other subscribers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from relay.config.model import RelayConfig
from relay.config.queues import BalancingSection, SubscriberEntry
from relay.message import envelope
from relay.message.envelope import Headers
from relay.queue.desired import Desired, Kind, Subject, Wanted, Wish, encode_uuid
from relay.queue.message import Audience, Group
from relay.queue.modes import in_mode
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores.sql_queue import SqlQueue
from relay.run.following import DesiredFollower
from relay.world import clock
from tests.simulation import collecting, database_atlas, putting_audit
from tests.simulation.broker import NewRecord, StoredRecord
from tests.simulation.crew import RELAY, read_config
from tests.simulation.database_connection import Connection
from tests.simulation.database_queue import (
    DELIVERIES,
    MESSAGES,
    OPENED,
    SimulatedValues,
    bind_simulated,
    bind_simulated_log,
    create_queue,
)
from tests.simulation.databases import Database, Row
from tests.simulation.evidence import Evidence, MessageId
from tests.simulation.kafka_ports import SimFollowing
from tests.simulation.plain_producers import LARGE_BYTES
from tests.simulation.publishers import Habits
from tests.simulation.putting_audit import Asked, Pause
from tests.simulation.republisher import Republisher
from tests.simulation.route_trial import RESOURCES, RouteTrial
from tests.simulation.subscribers import Heard, Taker
from tests.simulation.trial import FAULTS_S, Outcome

QUEUE: Final = "orders"
CONFIGS: Final = {
    name: read_config(
        f'queue = "{QUEUE}"',
        resources=f'{RESOURCES}[queues.{QUEUE}]\nstore = "{name}"\nsubscribers = {{ ann = {{}} }}\n'
        f"message_bytes = {LARGE_BYTES}\n",
    )
    for name in ("shop", "store", "log+shop", "log+store")
}
ALONE: Final = SubscriberEntry()
POOL: Final = SubscriberEntry(pool=["bob", "cid"])
AUDIENCES: Final[tuple[dict[str, SubscriberEntry], ...]] = (
    {"ann": ALONE},
    {"ann": ALONE, "dan": ALONE},
    {"ann": ALONE, "pool": POOL},
    {"pool": POOL, "ann": ALONE, "dan": ALONE},
)


class PuttingTrial(RouteTrial):
    """A route trial whose destination is a queue."""

    waiting_max: int | None = None
    """How many messages may wait in the queue; then nobody is paused, whose messages would fill it."""

    def __init__(self, seed: int, *, tracing: bool = False, only: frozenset[str] | None = None) -> None:
        self._rng = Random(f"{seed}/queue")
        self._takers: dict[str, Taker] = {}
        self._held: dict[Subject, float] = {}
        self._pauses: list[Pause] = []
        self._asked: dict[MessageId, Asked] = {}
        self._audiences: list[dict[str, SubscriberEntry]] = []
        further = self._further = Random(f"{seed}/further")
        if further.random() < 0.15:
            self.waiting_max = further.choice((1, 5, 30))
        self._late = Random(f"{seed}/late")
        self._late_s = self._late.choice((0.0, 0.0, 1.0))
        asks = self._asks = Random(f"{seed}/asks")
        self._delays, self._expires = asks.choice((0.0, 0.0, 0.2, 0.6)), asks.choice((0.0, 0.0, 0.0, 0.2))
        slow = Random(f"{seed}/hands")
        self._slow = slow if slow.random() < 0.3 else None
        self._draw_media(Random(f"{seed}/media"))
        if self._delays or self._expires:
            self.never = frozenset({"clock_jumps"})  # what is shown or expires an hour late is no fault of the queue
        super().__init__(seed, tracing=tracing, only=only)
        self.plain.further_headers = self._further_headers
        self._go_on_with(self._rng.choice(AUDIENCES))
        if self._rng.random() < 0.2 and not self._is_mixed:
            self._configure({"in_order": True})
        if self._balancing is not None:
            self._configure({"balancing": self._balancing})
        if self._refuses:
            settings = self.crew.config.queues[QUEUE].model_copy(update={"subscribers": AUDIENCES[-1]}).settings()
            Republisher(self.world, self._database, lambda c: self._bind(settings, c), Random(f"{seed}/again"), FAULTS_S)
        if self.waiting_max is not None:
            self._configure({"waiting_max": self.waiting_max})

    def _draw_media(self, rng: Random) -> None:
        """Draw where values lie, by what messages have other audiences than the queue's, and whether some are refused."""
        self._in_log = rng if rng.random() < 0.3 else None
        self._balancing = None
        if rng.random() < 0.25:
            off = rng.choice((1, 4))
            self._balancing = BalancingSection(on_above=off + rng.choice((1, 10)), off_below=off)
        self._modes = rng if rng.random() < 0.2 else None
        self._is_mixed = bool(self._balancing or self._modes)
        self._refuses = 0.2 if self._slow is not None and rng.random() < 0.5 else 0.0
        if self._refuses:
            self._expires = 0.0  # what is given again when its time is over comes to no end that could be told from a loss

    def _choose(self) -> tuple[str | None, RelayConfig]:
        destination = self.world.rng.choice(("shop", "store"))
        return destination, CONFIGS[destination if self._in_log is None else f"log+{destination}"]

    def _bind(self, settings: QueueSettings, connection: Connection) -> SqlQueue:
        if self._in_log is None:
            return bind_simulated(settings, connection)
        return bind_simulated_log(SimulatedValues(self.cluster.topics.by_name, self._in_log))(settings, connection)

    @property
    def _database(self) -> Database:
        assert self.destination is not None
        return self.databases[self.destination]

    def is_done(self) -> bool:
        """As of any route; and subscribers have all there is."""
        if not super().is_done():
            return False
        waits = any(row["state"] == PublisherState.PUT for row in self._database.rows(OPENED))
        if self._refuses and putting_audit.is_refused(self._database):
            return False
        return not waits and all(row["state"] == SubscriberState.JOURNALLED for row in self._database.rows(DELIVERIES))

    def _heard_late(self) -> float:
        return self._late.uniform(0.0, self._late_s)

    def _make_table(self) -> None:
        uuid = f"{self.world.rng.getrandbits(128):032x}"
        create_queue(self._database, QUEUE, uuid)
        self._tell(*encode_uuid(QUEUE, uuid))

    def _habits(self) -> Habits:
        return replace(super()._habits(), further_headers=self._further_headers)

    def _further_headers(self) -> Headers:
        """What a message asks of the queue."""
        found: Headers = []
        if self._delays and self._asks.random() < self._delays:
            found.append((envelope.DELAY, str(self._asks.choice((1, 300, 2_000, 8_000))).encode()))
        if self._expires and self._asks.random() < self._expires:
            at = clock.wall_ms() / 1000 + self._asks.choice((-1.0, 0.5, 4.0, 20.0))
            found.append((envelope.EXPIRY_TIME, datetime.fromtimestamp(at, UTC).isoformat().encode()))
        if self._modes and self._modes.random() < 0.4:
            found.append((envelope.MODE, self._modes.choice((b"balance", b"publish-subscribe", b"combined"))))
        return found

    def _follow(self) -> Heard:
        """Return what a subscriber goes by; some follow nobody, and all that was kept is for the route to show."""
        if not (self._delays or self._expires or self._slow):
            return Desired
        return DesiredFollower(SimFollowing(self.cluster, f"{RELAY}.control", self._heard_late())).now

    def _take_what_was_refused(self) -> None:
        """The queue's bound is raised, and the workers are started again with it."""
        self._configure({"message_bytes": 10 * LARGE_BYTES})

    def _plan(self) -> None:
        super()._plan()
        rng, world = self._rng, self.world
        sources = [*(publisher.source for publisher in self.publishers), *self.plain.sources]
        for _ in range(rng.choice((0, 5, 20, 40)) if self.waiting_max is None else 0):
            world.at(rng.uniform(0.0, FAULTS_S), self._pause, Subject(Kind.PUBLISHER, QUEUE, rng.choice(sources)), Wanted.PAUSE)
        for _ in range(rng.choice((0, 0, 0, 2))):
            world.at(rng.uniform(0.0, FAULTS_S), self._pause, Subject(Kind.QUEUE, QUEUE), Wanted.DRAIN)
        world.at(FAULTS_S, self._resume_all)
        if self._delays or self._expires:
            self._plan_waiting(sources)
        for _ in range(self._slow.choice((0, 3, 10)) if self._slow else 0):
            world.at(self._slow.uniform(0.0, FAULTS_S), self._strike_taker)
        if self._further.random() < 0.25:
            self.outcome.faults.append("queue:locked_rows")
            database_atlas.locked_rows(self._database, self._further, FAULTS_S, (OPENED, DELIVERIES, "relay_queue_group"))
        if rng.random() < 0.3:
            at, subscribers = rng.uniform(1.0, FAULTS_S), rng.choice(AUDIENCES)
            if not (self._is_mixed or self.crew.config.queues[QUEUE].in_order):  # a group that comes first now would get what follows before what waits for others
                world.at(at, self._go_on_with, subscribers)

    def _plan_waiting(self, sources: Sequence[str]) -> None:
        """Let pauses last while something waits for its time, and who shows it be started anew."""
        rng, world = self._asks, self.world
        for _ in range(rng.choice((0, 5, 15)) if self.waiting_max is None else 0):
            subject = Subject(Kind.PUBLISHER, QUEUE, rng.choice(sources))
            world.at(rng.uniform(0.0, FAULTS_S), self._pause, subject, Wanted.PAUSE, rng.uniform(1.0, 12.0))
        for _ in range(rng.choice((0, 3, 10))):
            world.at(rng.uniform(0.0, FAULTS_S), self._strike_taker)

    def _pause(self, subject: Subject, wanted: Wanted, for_s: float | None = None) -> None:
        self._wish(subject, wanted)
        if for_s is None:
            for_s = self._rng.choice((0.2, 1.0, 4.0, 12.0)) * self._rng.random()
        self.world.at(for_s, self._resume, subject)

    def _resume(self, subject: Subject) -> None:
        if subject not in self._held:
            return
        self._wish(subject, Wanted.RUN)
        if self._rng.random() < 0.3:
            self.world.at(self._rng.uniform(0.0, 0.5), self._kill_one)

    def _kill_one(self) -> None:
        """Let a worker die that has just heard of it, or has not."""
        running = [process for process in self.crew.running.values() if process.alive]
        if running and self.world.now < FAULTS_S:
            self._rng.choice(running).kill()

    def _strike_taker(self) -> None:
        self._asks.choice(sorted(self._takers.items()))[1].process.kill()

    def _resume_all(self) -> None:
        for subject in sorted(self._held, key=Subject.key):
            self._wish(subject, Wanted.RUN)

    def _wish(self, subject: Subject, wanted: Wanted) -> None:
        if wanted is Wanted.RUN:
            self._pauses.append(Pause(subject.name, self._held.pop(subject), self.world.now))
        elif self.world.now >= FAULTS_S:
            return
        else:
            self._held.setdefault(subject, self.world.now)
        self.world.trace("person", wanted.value, subject.kind.value, subject.name)
        self._tell(*Wish(subject, wanted, "a person", "simulated", 0).encode())

    def _tell(self, key: bytes, value: bytes | None) -> None:
        self.cluster.topics.by_name[f"{RELAY}.control"].partitions[0].append([NewRecord(key, value, [], 0)])

    def _go_on_with(self, subscribers: Mapping[str, SubscriberEntry]) -> None:
        """Give the queue these subscribers; workers hear of it as they start."""
        self._audiences.append(dict(subscribers))
        self._configure({"subscribers": dict(subscribers)})
        settings = self.crew.config.queues[QUEUE].settings()
        for group in settings.audience.groups:
            for name in group.members:
                if name not in self._takers:
                    self._takers[name] = Taker(
                        self.world, self._database, settings, name, self._follow, self._slow, self._bind, self._refuses
                    )

    def _configure(self, changed: dict[str, Any]) -> None:
        queue = self.crew.config.queues[QUEUE].model_copy(update=changed)
        self.crew.config = self.crew.config.model_copy(update={"queues": {QUEUE: queue}})
        for process in self.world.processes:
            if process.alive and process.name.startswith("worker-"):
                self.world.at(self._rng.uniform(0.0, 3.0), process.kill)

    def _collect_effects(self, database: Database, evidence: Evidence) -> None:
        collecting.table_of(database, MESSAGES, evidence, self._first_of, named=_named, placed=_placed)
        putting_audit.takes_of(database, evidence)
        if self._refuses:
            evidence.unordered = putting_audit.given_again(database)
        evidence.delayed = {name for name, asked in self._asked.items() if asked.delay_ms}

    def _evidence(self, *, quiescent: bool) -> Evidence:
        self._asked = putting_audit.asked_of(self.cluster)
        evidence = super()._evidence(quiescent=quiescent)
        groups = [{name: entry.pool or [name] for name, entry in audience.items()} for audience in self._audiences]
        if self._is_mixed:
            groups += [
                {group.name: group.members for group in in_mode(Audience(tuple(Group(n, tuple(m)) for n, m in one.items())), mode).groups}
                for one in groups for mode in ("balance", "publish-subscribe")
            ]  # fmt: skip
        if quiescent:
            self.outcome.problems += putting_audit.shown_while_paused(self._database, self._pauses)
        self.outcome.problems += putting_audit.audit(self._database, groups, self._asked, quiescent=quiescent)
        return evidence

    def _is_poison(self, record: StoredRecord) -> bool:
        return len(record) >= LARGE_BYTES


def _named(row: Row) -> MessageId:
    return row["publisher"], row["id"]


def _placed(row: Row) -> tuple[int, ...]:
    return (row["handle"],)


def run_putting(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed of captured and other messages on their way into a queue, and on to its subscribers."""
    return PuttingTrial(seed, tracing=tracing).run()
