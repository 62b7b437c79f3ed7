"""One seed, one run of everything: services that capture, producers that do not, workers, a topic or a table at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relay.config.model import RelayConfig
from tests.simulation import collecting, database_atlas, database_ports, kafka_ports
from tests.simulation.atlas import Faults
from tests.simulation.auditor import audit
from tests.simulation.broker import NewRecord, StoredRecord
from tests.simulation.crew import LOG, OUTPUT, RELAY, Crew, read_config
from tests.simulation.databases import Database, Row, Table
from tests.simulation.evidence import Evidence
from tests.simulation.gathering import Gathering
from tests.simulation.installation import installed
from tests.simulation.plain_producers import LARGE_BYTES, PlainProducers, take_large_ones
from tests.simulation.publishers import Habits, Notes, Publisher
from tests.simulation.redriver import Redriver
from tests.simulation.scheduler import BusyLoop, Process, World
from tests.simulation.site import Cluster
from tests.simulation.trial import FAULTS_S, LOOK_S, Outcome, _log_to, _make_topics, _vary

HEALING_S: Final = 420.0
"""After healing: idle transactions, resends, back-offs, and a join whose answer is lost (max.poll.interval), with room."""
QUIET_S: Final = 12.0
"""What follows a delivery, dead letters above all, arrives within a session's end and a recovery."""
LEDGER: Final = "ledger"
RESOURCES: Final = "".join(
    f'[resources.{name}]\nurl = "{database_ports.address(name)}"\n' for name in ("shop", "store")
)
TOPIC_CONFIG: Final = read_config(resources=RESOURCES)
COLUMNS: Final = '{ source = "ce:source", id = "ce:id", place = "kafka:offset", payload = "kafka:value" }'
TABLE_CONFIGS: Final = {
    name: read_config(f'resource = "{name}", table = "{LEDGER}", mode = "insert", columns = {COLUMNS}', resources=RESOURCES)
    for name in ("shop", "store")
}
TABLE_POINTS: Final = ("table.position", "table.inbox", "table.committing", "table.committed")
BROKEN: Final = b"{broken"


class RouteTrial:
    """Composes a run; ``run`` lets it happen and returns what it showed."""

    redrives_often = 0.4
    never: frozenset[str] = frozenset()

    def __init__(self, seed: int, *, tracing: bool = False, only: frozenset[str] | None = None) -> None:
        world = self.world = World(seed, tracing=tracing)
        _log_to(world)
        rng = world.rng
        self.cluster = Cluster(world)
        self.databases = {name: Database(world, name) for name in ("shop", "store")}
        for database in self.databases.values():
            database.create_relay_tables(f"{rng.getrandbits(128):032x}")
        self.destination, config = self._choose()
        _make_topics(world, self.cluster)
        self.crew = Crew(world, _vary(world, config))
        self.notes = Notes()
        self.publishers = self._publishers()
        self.plain = PlainProducers(
            world, self.cluster, messages=rng.choice((0, 8, 40)), seconds=FAULTS_S * 0.8
        )
        if only is None and rng.random() < 0.25:
            only = frozenset()  # calm workers live long enough to meet a database that went back
        self.faults = Faults(world, self.cluster, self.crew, FAULTS_S, only, never=self.never)
        self._strikes_left = rng.choice((0, 0, 2, 4))
        self.gathering = Gathering(world, self.cluster) if self.destination is None else None
        if self.gathering is not None:
            self.crew.on_end.append(self.gathering.sample)
        else:
            self._make_table()
        self.outcome = Outcome(seed, faults=self.faults.names)
        mend, often = self._take_what_was_refused, self.redrives_often
        self.redriver = Redriver(world, self.cluster, seed, FAULTS_S, mend, often=often)

    def run(self) -> Outcome:
        """Let it happen, heal, wait until nothing is left to do, audit."""
        world, outcome = self.world, self.outcome
        also = [
            *kafka_ports.stand_ins(self.cluster, kafka_ports.Disks(), self._heard_late),
            *database_ports.stand_ins(self.databases),
        ]
        with installed(world, crash_points=self._passed, also=also):
            self._plan()
            for number in range(world.rng.choice((1, 2, 2, 3))):
                world.at(world.rng.random() * 2, self.crew.start, number)
            for publisher in self.publishers:
                world.at(world.rng.random(), publisher.start)
            world.at(FAULTS_S, self._heal)
            world.at(FAULTS_S + 0.5, self._last_words)
            world.at(FAULTS_S + 1, self._look)
            try:
                world.run(FAULTS_S + HEALING_S)
            except BusyLoop as busy:
                outcome.problems.append(f"busy loop (I18): {busy}")
            outcome.problems += [f"stopped (I18): {reason}" for reason in self.crew.stopped]
            outcome.problems += [f"uncaught: {reason}" for reason in self.crew.uncaught]
            for publisher in self.publishers:
                if publisher.process is not None and publisher.process.failure is not None:
                    outcome.problems.append(f"uncaught: {publisher.source} {publisher.process.failure!r}")
            outcome.problems += [str(anomaly) for anomaly in audit(self._evidence(quiescent=not outcome.problems))]
        outcome.messages = self.notes.published + self.plain.sent
        outcome.lines, outcome.deaths = world.lines, self.crew.deaths
        outcome.seconds, outcome.steps = world.now, world.steps
        return outcome

    def is_done(self) -> bool:
        """Are the publishers done, and is everything delivered?"""
        if not all(publisher.done for publisher in self.publishers):
            return False
        if not self.redriver.is_done():
            return False
        if self.gathering is not None:
            return self.gathering.is_done()
        assert self.destination is not None
        positions = self.stored()
        logs = self.cluster.topics.by_name[LOG].partitions
        if not all(log.stable_end == log.end <= positions.get(log.place.partition, 0) for log in logs):
            return False
        # A worker that dies after its commit leaves its dead letters to the next owner.
        refused = sum(row["outcome"] == 1 for row in self.databases[self.destination].rows("relay_inbox"))
        return sum(1 for dead in self.cluster.topics.by_name[f"{RELAY}.deadletter"].partitions for _ in dead.visible()) >= refused

    def stored(self) -> dict[int, int]:
        """Return where the route stands in each partition of the log as it is now, by its place of truth."""
        topic_id, route = self.cluster.topics.by_name[LOG].topic_id, self.crew.route
        if self.destination is None:
            committed = self.cluster.groups.group(f"{RELAY}.{route}").committed
            return {place.partition: offset for place, (offset, _) in committed.items()}
        rows = self.databases[self.destination].rows("relay_position")
        return {
            row["partition"]: row["position"] or 0
            for row in rows
            if (row["topic_id"], row["route"]) == (topic_id, route)
        }

    def _choose(self) -> tuple[str | None, RelayConfig]:
        """Draw the database of the destination, None for a topic."""
        destination = self.world.rng.choice((None, "shop", "store"))
        return destination, TOPIC_CONFIG if destination is None else TABLE_CONFIGS[destination]

    def _heard_late(self) -> float:
        """How late a process that starts now will hear what persons say."""
        return 0.0

    def _publishers(self) -> list[Publisher]:
        world, rng = self.world, self.world.rng
        count = len(self.cluster.topics.by_name[LOG].partitions)
        return [
            Publisher(world, self.databases["shop"], f"/shop/{n}", [(LOG, count)], self._habits(), self.notes)
            for n in range(rng.choice((1, 1, 2)))
        ]

    def _habits(self) -> Habits:
        rng = self.world.rng
        return Habits(
            captures=rng.choice((2, 8, 20)),
            threads=rng.choice((1, 2, 3)),
            messages=(0, rng.choice((1, 3, 6))),
            items=rng.choice((1, 3)),
            changes=(0, rng.choice((0, 2))),
            rolls_back=rng.choice((0.0, 0.15, 0.4)),
            poison=rng.choice((0.0, 0.0, 0.1)) if self.destination is not None else 0.0,
            slow_s=(0.05, rng.choice((1.0, 8.0, 35.0))),
            pause_s=(0.0, rng.choice((0.2, 1.0, 2.0))),
        )

    def _take_what_was_refused(self) -> None:
        if self.destination is None:
            take_large_ones(self.cluster)
        else:
            self.databases[self.destination].tables[LEDGER].check = None

    def _make_table(self) -> None:
        assert self.destination is not None
        columns = {"source": "text", "id": "text", "place": "integer", "payload": "bytes"}
        # No key: a second effect must show as a second row.
        self.databases[self.destination].create(Table(LEDGER, columns, check=_refuse_broken))

    def _plan(self) -> None:
        """Draw the databases' faults, and the publishers'."""
        world, rng = self.world, self.world.rng
        for name, database in self.databases.items():
            for fault in database_atlas.DATABASE_FAULTS:
                if rng.random() < 0.25:
                    self.outcome.faults.append(f"{name}:{fault.__name__}")
                    fault(database, rng, FAULTS_S)
        if self.destination == "store" and rng.random() < 0.2:
            self.outcome.faults.append("store:restored_backup")
            database_atlas.restored_backup(self.databases["store"], rng, FAULTS_S)
        if self.destination is not None and rng.random() < 0.4:
            for point in rng.sample(TABLE_POINTS, rng.randrange(1, 3)):
                self.faults.crash_at[point] = rng.randrange(0, 8)
        for _ in range(rng.choice((0, 0, 2))):
            world.at(rng.uniform(0.0, FAULTS_S), self._strike)
        world.trace("faults", self.destination or "topic", *self.outcome.faults)

    def _strike(self) -> None:
        rng = self.world.rng
        process = rng.choice(self.publishers).process
        if process is not None and process.alive:
            actions: tuple[Callable[[], None], ...] = (process.kill, lambda: process.freeze(rng.uniform(0.5, 35.0)))
            rng.choice(actions)()

    def _passed(self, process: Process, point: str) -> None:
        if not point.startswith("capture."):
            self.faults.passed(process, point)
        elif self._strikes_left and self.world.now < FAULTS_S and self.world.rng.random() < 0.05:
            self._strikes_left -= 1
            process.kill_at(point)

    def _last_words(self) -> None:
        """One more message for each partition: a database that went back is noticed with the next delivery."""
        for partition in self.cluster.topics.by_name[LOG].partitions:
            headers = [("ce_id", b"last"), ("ce_source", f"/last/{partition.place.partition}".encode())]
            partition.append([NewRecord(None, b"last", headers, 0)])

    def _heal(self) -> None:
        for database in self.databases.values():
            database_atlas.heal(database)
        for publisher in self.publishers:
            if publisher.process is not None:
                publisher.process.thawed_at = min(publisher.process.thawed_at, self.world.now)

    def _look(self) -> None:
        if self.crew.stopped or self.crew.uncaught:
            self.world.stop()
        elif self.is_done():
            self.world.at(QUIET_S, self._look_again)
        else:
            self.world.at(LOOK_S, self._look)

    def _look_again(self) -> None:
        if self.is_done():
            self.world.stop()
        else:
            self._look()

    def _evidence(self, *, quiescent: bool) -> Evidence:
        if self.gathering is not None:
            evidence = self.gathering.finish(quiescent=quiescent)
            evidence.log = []
        else:
            assert self.destination is not None
            evidence = Evidence(quiescent=quiescent)
            self._collect_effects(self.databases[self.destination], evidence)
            collecting.dead_of(self.cluster, f"{RELAY}.deadletter", evidence)
        evidence.redriven = self.redriver.redriven
        evidence.told, evidence.undone = self.notes.told, self.notes.undone
        collecting.log_of(self.cluster, [LOG], self._is_poison, evidence)
        collecting.decisions_of(self.databases["shop"], evidence)
        collecting.leaks_of(self.cluster, [OUTPUT, f"{RELAY}.deadletter"], evidence)
        evidence.markers_due = False  # a COMMIT may land after its publisher's last start
        return evidence

    def _collect_effects(self, database: Database, evidence: Evidence) -> None:
        collecting.table_of(database, LEDGER, evidence, self._first_of)

    def _first_of(self, _topic_id: bytes) -> int:
        """Where the offsets of a topic with the log's name count from: here is one only."""
        return 0

    def _is_poison(self, record: StoredRecord) -> bool:
        if self.destination is None:
            return len(record) >= LARGE_BYTES
        return record.value() == BROKEN


def _refuse_broken(row: Row) -> str | None:
    return "check_violation" if row["payload"] == BROKEN else None



def run_route(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed of captured and other messages on their way to a topic or a table."""
    return RouteTrial(seed, tracing=tracing).run()
