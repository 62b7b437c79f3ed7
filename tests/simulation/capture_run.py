"""One run of publishers without any relay: what they were told, the decision rows and the log must agree."""

from __future__ import annotations

from tests.simulation import database_atlas, kafka_ports
from tests.simulation.auditor import CAPTURE_CHECKS, Anomaly, audit
from tests.simulation.collecting import decisions_of, log_of
from tests.simulation.databases import Database
from tests.simulation.evidence import Evidence
from tests.simulation.installation import installed
from tests.simulation.publishers import Habits, Notes, Publisher
from tests.simulation.scheduler import Process, World
from tests.simulation.site import Cluster
from tests.simulation.trial import Outcome, _log_to

TOPIC = "orders"
FAULTS_S = 40.0
HEALED_S = 200.0
LATE_S = 45.0
"""No COMMIT is held longer: after it every capture is decided, unless nobody asks."""


def habits_of(world: World) -> Habits:
    """Draw what a publisher does."""
    rng = world.rng
    return Habits(
        captures=rng.randint(3, 25),
        threads=rng.randint(1, 4),
        messages=(0, rng.randint(1, 5)),
        items=rng.randint(1, 4),
        changes=(0, rng.randint(0, 3)),
        rolls_back=rng.choice((0.0, 0.1, 0.4)),
        pause_s=(0.0, rng.choice((0.05, 1.0, 4.0))),
        slow=rng.choice((0.0, 0.1)),
    )


class CaptureRun:
    """Publishers, a database and a log; ``anomalies`` after ``run``."""

    def __init__(self, seed: int, *, tracing: bool = False, faults: bool = True) -> None:
        self.world = World(seed, tracing=tracing)
        _log_to(self.world)
        self.cluster = Cluster(self.world)
        self.database = Database(self.world)
        self.database.create_relay_tables(f"{self.world.rng.getrandbits(128):032x}")
        self.notes = Notes()
        self.publishers: list[Publisher] = []
        self.faults: list[str] = []
        self._faults = faults
        self._kills_left = 0
        self._kill_share = 0.0

    def run(self) -> list[Anomaly]:
        """Let it happen, heal, wait, audit."""
        world, rng = self.world, self.world.rng
        partitions = rng.randint(1, 3)
        self.cluster.topics.create(TOPIC, partitions)
        stand_ins = kafka_ports.stand_ins(self.cluster, kafka_ports.Disks())
        with installed(world, crash_points=self._passed, also=stand_ins):
            for number in range(rng.randint(1, 3)):
                publisher = Publisher(
                    world, self.database, f"/shop/{number}", [(TOPIC, partitions)], habits_of(world), self.notes
                )
                self.publishers.append(publisher)
                publisher.start()
            if self._faults:
                self._plan()
            world.run(FAULTS_S)
            self._heal()
            self._run_until_done(HEALED_S)
            if all(publisher.done for publisher in self.publishers):
                world.run(max(world.now, FAULTS_S) + LATE_S)
                for publisher in self.publishers:
                    publisher.start_for_the_last_time()
                self._run_until_done(world.now + HEALED_S)
            return self.audit()

    def _run_until_done(self, limit: float) -> None:
        while self.world.now < limit and not all(publisher.done for publisher in self.publishers):
            self.world.run(self.world.now + 1.0)

    def audit(self) -> list[Anomaly]:
        """Hold what is stored against what was told."""
        evidence = Evidence(told=self.notes.told, undone=self.notes.undone)
        log_of(self.cluster, [TOPIC], lambda _: False, evidence)
        decisions_of(self.database, evidence)
        evidence.quiescent = all(publisher.done for publisher in self.publishers)
        found = audit(evidence, CAPTURE_CHECKS)
        for publisher in self.publishers:
            if not publisher.done:
                found.append(Anomaly("not done", "I18", f"{publisher.source} after {self.world.now:.0f} s"))
            assert publisher.process is not None
            failure = publisher.process.failure
            if failure is not None:
                found.append(Anomaly("unexpected end", "I18", f"{publisher.source}: {failure!r}"))
        return found

    def _plan(self) -> None:
        """Draw which faults this run has (swarm style: each run leaves some out)."""
        world, rng = self.world, self.world.rng
        for fault in database_atlas.DATABASE_FAULTS:
            if rng.random() < 0.35:
                world.trace("fault", fault.__name__)
                self.faults.append(fault.__name__)
                fault(self.database, rng, FAULTS_S)
        weather = self.cluster.weather
        for api in ("Produce", "InitProducerId"):
            if rng.random() < 0.4:
                weather.rates[api] = rng.choice((0.02, 0.1, 0.3))
        if rng.random() < 0.3:
            world.at(rng.uniform(0.0, FAULTS_S), self.cluster.network.pause_broker, rng.uniform(0.5, 12.0))
        if rng.random() < 0.5:
            self._kills_left, self._kill_share = rng.randint(1, 4), rng.choice((0.01, 0.05))
        for _ in range(rng.choice((0, 0, 1, 3))):
            world.at(rng.uniform(0.0, FAULTS_S), self._strike, rng.choice(("kill", "freeze", "arm")))

    def _strike(self, how: str) -> None:
        rng = self.world.rng
        publisher = rng.choice(self.publishers)
        if publisher.done or publisher.process is None or not publisher.process.alive:
            return
        if how == "kill":
            publisher.process.kill()
        elif how == "arm":
            publisher.process.kill_in = rng.randint(1, 60)
        else:
            publisher.process.freeze(rng.uniform(0.5, 40.0))

    def _passed(self, process: Process, point: str) -> None:
        if self._kills_left and point.startswith("capture.") and self.world.rng.random() < self._kill_share:
            self._kills_left -= 1
            process.kill_at(point)

    def _heal(self) -> None:
        database_atlas.heal(self.database)
        self.cluster.weather.on = False
        self._kills_left = 0
        for publisher in self.publishers:
            if publisher.process is not None:
                publisher.process.kill_in = None


def run_capture(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed of publishers alone."""
    made = CaptureRun(seed, tracing=tracing)
    problems = [str(anomaly) for anomaly in made.run()]
    deaths = sum(publisher.incarnations - 1 for publisher in made.publishers)
    world = made.world
    return Outcome(seed, problems, made.faults, world.lines, made.notes.published, deaths, world.now, world.steps)
