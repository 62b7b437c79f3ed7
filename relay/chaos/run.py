"""One run: start, strike, heal, let the workers come to rest, and hold reader, auditor and database against each other."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from relay.audit.verify import RouteReport, verify
from relay.chaos import history as histories
from relay.chaos import workload
from relay.chaos.course import Course, Say
from relay.chaos.crew import Command, Crew
from relay.chaos.disks import Disk
from relay.chaos.faults import Deed, StageFaults, WorkerFaults
from relay.chaos.history import History
from relay.chaos.nemesis import ALL, SAFE, Kind, plan
from relay.chaos.result import Result, audit_complaints, compare, not_passed, reader_complaints
from relay.chaos.sights import Sights
from relay.chaos.stage import CAPTURED, PLAIN, SHOWN, STATE_DISK, Stage, build
from relay.chaos.watching import Checks, MessageId, Watch
from relay.config.model import RelayConfig, TopicDestination
from relay.control.status_reading import StatusReader
from relay.kafka.topics import Topics
from relay.local.two_routes import LEDGER, TO_TABLE, TO_TOPIC
from relay.message.errors import CheckFailed, RelayError
from relay.message.record import LogPartition
from relay.run.lifeline import ParentEnd, parent_end
from relay.world import clock, schedule

CLOCKS: Final = "clocks"
IDLE_S: Final = 5.0
REST_S: Final = 240.0
"""How long the workers may take to come to rest: some recoveries, rebalances and timeouts after one another."""
READ_S: Final = 60.0
SOURCE_GRACE_S: Final = 60.0
"""A publisher finds out what became of its last captures before it ends."""
ROLES: Final = {
    "publisher-0": workload.CAPTURING,
    "publisher-1": workload.CAPTURING,
    "producer-0": workload.ABORTING,
    "producer-1": workload.REPEATING,
}


@dataclass(frozen=True)
class Order:
    """What is asked for."""

    minutes: float
    seed: int
    workers: int = 2
    brokers: int = 3


def demonstrate(directory: Path, order: Order, say: Say) -> Result:
    """Run the demonstration in an empty directory. Raises RelayError with a sentence for people."""
    say(f"starting {order.brokers} brokers and PostgreSQL")
    stage = build(directory, order.brokers, say)
    with ExitStack() as stack:
        stack.callback(stage.close)
        run = _Run(stage.config, directory, order, say, stack)
        run.clocks_jump = True
        run.history.tell("note", text=stage.disks.told)
        sources = Crew("source", stage.log, run.history, run.lifeline)
        stack.callback(sources.end, 0.0)
        faults = StageFaults(stage, sources, run.stopping)
        stack.callback(faults.thaw)
        stack.callback(run.stopping.set)
        run.checks = Checks((CAPTURED, PLAIN), run.anomaly)
        run.start(dict.fromkeys(run.partitions((CAPTURED, PLAIN, SHOWN)), 0))
        for name, role in ROLES.items():
            sources.add(name, _publisher(stage.config, name, role, order.seed))
        course = run.strike(ALL, faults.deeds, sources, stage.disks.by_name.get(STATE_DISK))
        faults.heal()
        say("everything is healed; the publishers end, and the workers run until idle")
        sources.end(SOURCE_GRACE_S)
        run.rest()
        result = run.result(course, sources)
        result.disks = stage.disks.told
        result.complaints += _against_database(stage, run.checks, result.reports)
        result.complaints += [f"the frame proxy failed: {error}" for proxy in stage.proxies for error in proxy.failures]
        return run.conclude(result)


def strike(config: RelayConfig, directory: Path, order: Order, say: Say) -> Result:
    """Run workers of a configuration and strike only these. Raises RelayError with a sentence for people."""
    with ExitStack() as stack:
        run = _Run(config, directory, order, say, stack)
        stack.callback(run.stopping.set)
        outputs = {route.to.topic for route in config.routes.values() if isinstance(route.to, TopicDestination)}
        run.checks = Checks((), run.anomaly)
        run.start(run.ends(outputs))
        course = run.strike(SAFE, {}, None)
        say("everything is healed; the workers run until idle")
        run.rest(may_lag=True)
        return run.conclude(run.result(course, None, allow_lag=True))


class _Run:
    """What both kinds of run share: workers, reader, sights, history."""

    checks: Checks
    clocks_jump = False
    """Do the workers follow clocks of their own? Only those of a demonstration."""

    def __init__(self, config: RelayConfig, directory: Path, order: Order, say: Say, stack: ExitStack) -> None:
        self.config = config
        self.stopping = schedule.event()
        self.history = History(directory / histories.FILE)
        stack.callback(self.history.close)
        self.lifeline: ParentEnd = parent_end()
        stack.callback(self.lifeline.close)
        self._directory = directory
        self._order = order
        self._say = say
        self._stack = stack
        (directory / CLOCKS).mkdir(exist_ok=True)
        self._complaints: list[str] = []
        self._workers = Crew("worker", self._log, self.history, self.lifeline)
        stack.callback(self._workers.end, 0.0)

    def start(self, firsts: dict[LogPartition, int]) -> None:
        """Start workers, reader and sights."""
        self._watch = Watch(self.config, firsts, self.checks, self._complaints.append)
        self._stack.callback(self._watch.stop)
        self._sights = Sights(self.config, self.history, self._complaints.append)
        self._stack.callback(self._sights.end)
        for route in self.config.routes:
            for number in range(self._order.workers):
                self._workers.add(f"{route}.{number}", self._worker(route, number))
        self._say(f"{self._order.workers} workers for each of {', '.join(self.config.routes)}")

    def strike(
        self, kinds: Iterable[Kind], more: dict[Kind, Deed], sources: Crew | None, disk: Disk | None = None
    ) -> Course:
        """Let the accidents happen."""
        seconds = self._order.minutes * 60
        own = WorkerFaults(
            self._workers, list(self.config.routes), self._order.workers, self._worker, self.stopping,
            clock_of=self._clock, disk=disk,
        )  # fmt: skip
        planned = plan(self._order.seed, seconds, tuple(kinds), self.config.timing.session_timeout)
        course = Course(planned, {**own.deeds, **more}, self.history, self._say)

        def tend() -> None:
            self._workers.tend()
            if sources is not None:
                sources.tend()

        try:
            course.run(seconds, tend)
        except BaseException:
            # Stop: what began must undo itself, or it would start a service again behind our back.
            self.stopping.set()
            course.finish(lambda: None)
            raise
        course.finish(tend)
        self._workers.thaw()
        return course

    def rest(self, *, may_lag: bool = False) -> None:
        """Drain the workers, and let a last crew run until there is nothing left to do.

        With ``may_lag`` publishers may go on for ever, and what stood in the logs by now must be passed.
        """
        self._workers.end()
        stood = self.ends(self.config.log_topics) if may_lag else {}
        for route in self.config.routes:
            for number in range(self._order.workers):
                self._workers.add(f"{route}.{number}", self._worker(route, number, IDLE_S))
        limit = clock.monotonic() + REST_S
        while not self._workers.is_empty:
            self._workers.tend()
            if clock.monotonic() > limit:
                names = ", ".join(self._workers.running())
                if may_lag:
                    self._complaints += self._not_passed(stood)
                else:
                    self._complaints.append(f"these did not come to rest within {REST_S:g} s: {names}")
                self._workers.end()
                return
            clock.sleep(0.1)

    def _not_passed(self, stood: dict[LogPartition, int]) -> list[str]:
        latest = {name for name, route in self.config.routes.items() if route.start == "latest"}
        try:
            with StatusReader(self.config) as reader:
                return not_passed(reader.read(), stood, REST_S, latest)
        except RelayError as error:
            return [f"whether the workers have passed what stood in the logs cannot be told: {error}"]

    def result(self, course: Course, sources: Crew | None, *, allow_lag: bool = False) -> Result:
        """Let the reader come to its end, then audit."""
        self._sights.end()
        ends = self.ends({place.topic for place in self._watch.places})
        self._complaints += [f"the reader did not reach the end of {place}" for place in self._watch.end(ends, READ_S)]
        self._say("the auditor reads log, destinations and monitor")
        watched = self.checks.conclude()
        result = Result(self._order.seed, 0.0, str(self._directory), dict(sorted(course.faults.items())), course.missed)
        crews = [self._workers] if sources is None else [self._workers, sources]
        result.ends = dict(sum((crew.ends for crew in crews), start=type(self._workers.ends)()))
        result.reader = watched
        result.complaints = [*self._complaints, *course.complaints, *reader_complaints(watched)]
        result.complaints += [complaint for crew in crews for complaint in crew.complaints]
        if not result.struck:
            result.complaints.append("no fault happened: give more minutes")
        try:
            result.reports = verify(self.config, (), allow_lag=allow_lag)
        except RelayError as error:
            result.complaints.append(f"the audit failed: {error}")
        result.complaints += audit_complaints(result.reports)
        return result

    def conclude(self, result: Result) -> Result:
        """Write the result down."""
        result.seconds = self.history.now()
        self.history.tell("result", report=result.document())
        return result

    def anomaly(self, anomaly: tuple[str, str]) -> None:
        """Write down, at once, what the reader saw."""
        kind, detail = anomaly
        self.history.tell("anomaly", kind=kind, detail=detail)
        self._say(f"ANOMALY {kind}: {detail}")

    def partitions(self, topics: Iterable[str]) -> list[LogPartition]:
        """Return the partitions of topics."""
        with Topics(self.config.kafka, self.config.timing) as asked:
            facts = asked.describe(topics, settings=False)
        return [LogPartition(name, n) for name in sorted(facts) for n in range(facts[name].partitions)]

    def ends(self, topics: Iterable[str]) -> dict[LogPartition, int]:
        """Return the high watermarks of topics."""
        places = self.partitions(topics)
        with Topics(self.config.kafka, self.config.timing) as asked:
            marks = {
                name: asked.watermarks(name, [p.partition for p in places if p.topic == name])
                for name in {place.topic for place in places}
            }
        return {place: marks[place.topic][place.partition][1] for place in places}

    def _worker(self, route: str, number: int, until_idle_s: float | None = None) -> Command:
        skewed = ["relay.chaos.skewed", str(self._clock(f"{route}.{number}"))]
        words = [sys.executable, "-m", *(skewed if self.clocks_jump else ["relay.run.process"])]
        words += [str(self.config.path), "--route", route]
        words += ["--worker", str(number)]
        words += [] if until_idle_s is None else ["--until-idle", f"{until_idle_s:g}"]
        return lambda _runs: words

    def _clock(self, name: str) -> Path:
        return self._directory / CLOCKS / name

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def _publisher(config: RelayConfig, name: str, role: str, seed: int) -> Command:
    words = [sys.executable, "-m", "relay.chaos.workload", str(config.path), "--role", role, "--name", name]
    return lambda runs: [*words, "--seed", str(seed), "--run", str(runs)]


def _against_database(stage: Stage, checks: Checks, reports: list[RouteReport]) -> list[str]:
    """Hold the publishers' own table against both destinations, and the reader's count against the auditor's."""
    with psycopg.connect(stage.url, autocommit=True) as connection:
        noted = _counted(connection.execute("select source, id, 1 from noted").fetchall())
        ledger = _counted(
            connection.execute("select source, id, count(*) from ledger group by source, id").fetchall()
        )
    if not noted:
        raise CheckFailed("the publishers captured nothing: look into publisher-0.log")
    sources = {message[0] for message in noted}
    found = []
    for route, arrived in ((TO_TOPIC, checks.times), (TO_TABLE, ledger)):
        found += compare(route, set(noted), arrived, sources)
    if any(times > 1 for times in ledger.values()):
        found.append(f"{TO_TABLE}: {LEDGER} holds some messages more than once")
    for report in reports:
        if report.route == TO_TOPIC and report.findings.delivered != len(checks.times):
            found.append(f"the reader saw {len(checks.times)} messages, the auditor {report.findings.delivered}")
    return found


def _counted(rows: list[tuple[str, str, int]]) -> dict[MessageId, int]:
    return {(source.encode(), id_.encode()): times for source, id_, times in rows}

