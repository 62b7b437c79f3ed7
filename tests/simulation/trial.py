"""One seed, one run: a relay, its publishers, faults, healing, and the audit of what is left."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from relay.config.model import RelayConfig
from tests.simulation import kafka_ports
from tests.simulation.atlas import Faults
from tests.simulation.auditor import audit
from tests.simulation.crew import LOG, OUTPUT, RELAY, ROUTE, Crew, read_config
from tests.simulation.gathering import Gathering
from tests.simulation.installation import installed
from tests.simulation.plain_producers import LARGE_BYTES, PlainProducers, take_large_ones
from tests.simulation.redriver import Redriver
from tests.simulation.scheduler import BusyLoop, World
from tests.simulation.site import Cluster

FAULTS_S: Final = 20.0
HEALING_S: Final = 150.0
"""After healing: sessions, transaction timeouts and back-offs, with room."""
LOOK_S: Final = 0.5
CONFIG: Final = read_config()
UNVERIFIED: Final = CONFIG.model_copy(update={"relay": CONFIG.relay.model_copy(update={"partition_verification": "absent"})})


@dataclass
class Outcome:
    """What a run showed; no ``problems``: it kept every promise."""

    seed: int
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lines: list[tuple[Any, ...]] = field(default_factory=list)
    messages: int = 0
    deaths: int = 0
    seconds: float = 0.0
    steps: int = 0

    @property
    def digest(self) -> str:
        """Tells two runs apart: a hash of everything that was traced."""
        return hashlib.blake2b(repr(self.lines).encode(), digest_size=16).hexdigest()


def run_unverified(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed of a topic route on a broker that does not verify the partitions of transactions."""
    return run_topic(seed, tracing=tracing, base=UNVERIFIED)


def run_topic(
    seed: int, *, tracing: bool = False, only: frozenset[str] | None = None, base: RelayConfig = CONFIG
) -> Outcome:
    """Run one seed of a topic route."""
    world = World(seed, tracing=tracing)
    _log_to(world)
    cluster = Cluster(world)
    cluster.transactions.verification = base.relay.partition_verification != "absent"
    config = _vary(world, base)
    _make_topics(world, cluster)
    crew = Crew(world, config)
    gathering = Gathering(world, cluster)
    crew.on_end.append(gathering.sample)
    rng = world.rng
    storm = rng.random() < 0.4
    if storm:
        crew.config = _crowded(crew.config)
    messages = rng.choice((80, 160)) if storm else rng.choice((12, 40, 120))
    producers = PlainProducers(world, cluster, messages=messages, seconds=FAULTS_S * 0.8)
    faults = Faults(world, cluster, crew, FAULTS_S, only, storm=storm)
    redriver = Redriver(world, cluster, seed, FAULTS_S, lambda: take_large_ones(cluster))
    outcome = Outcome(seed, faults=faults.names, messages=producers.sent)
    with installed(world, crash_points=faults.passed, also=kafka_ports.stand_ins(cluster, kafka_ports.Disks())):
        for number in range(rng.choice((2, 3)) if storm else rng.choice((1, 1, 2, 2, 3))):
            world.at(rng.random() * 2, crew.start, number)
        _look(world, crew, lambda: gathering.is_done() and redriver.is_done())
        try:
            world.run(FAULTS_S + HEALING_S)
        except BusyLoop as busy:
            outcome.problems.append(f"busy loop (I18): {busy}")
        outcome.problems += [f"stopped (I18): {reason}" for reason in crew.stopped]
        outcome.problems += [f"uncaught: {reason}" for reason in crew.uncaught]
        quiescent = not outcome.problems
        gathering.evidence.redriven = redriver.redriven
        outcome.problems += [str(anomaly) for anomaly in audit(gathering.finish(quiescent=quiescent))]
    outcome.lines, outcome.deaths, outcome.seconds, outcome.steps = world.lines, crew.deaths, world.now, world.steps
    return outcome


def _look(world: World, crew: Crew, is_done: Callable[[], bool]) -> None:
    """End the run when nothing is left to do, or when a worker has given up."""

    def look() -> None:
        if crew.stopped or crew.uncaught or (world.now > FAULTS_S + 2 and is_done()):
            world.stop()
        else:
            world.at(LOOK_S, look)

    world.at(FAULTS_S + 1, look)


def _vary(world: World, config: RelayConfig) -> RelayConfig:
    """Draw limits: short and long ones meet different interleavings."""
    rng = world.rng
    transaction = rng.choice((1.5, 3.0, 8.0))
    timing = config.timing.model_copy(
        update={
            "transaction_timeout": transaction,
            "socket_timeout": transaction * rng.choice((0.3, 0.9)),
            "session_timeout": rng.choice((6.0, 10.0)),
            "resend_after": transaction * 0.5,
        }
    )
    route = config.routes[ROUTE]
    batch = route.batch.model_copy(
        update={"messages": rng.choice((1, 5, 20, 1000)), "linger_s": rng.choice((0.05, 0.1, 0.2))}
    )
    made = route.model_copy(update={"batch": batch, "order": rng.choice(("publisher", "partition"))})
    return config.model_copy(update={"timing": timing, "routes": {ROUTE: made}})


def _crowded(config: RelayConfig) -> RelayConfig:
    """Small batches, so that one transaction follows the other."""
    route = config.routes[ROUTE]
    made = route.model_copy(update={"batch": route.batch.model_copy(update={"messages": 3})})
    return config.model_copy(update={"routes": {ROUTE: made}})


def _make_topics(world: World, cluster: Cluster) -> None:
    rng = world.rng
    count = rng.choice((1, 2, 3))
    create = cluster.topics.create
    create(LOG, count)
    create(OUTPUT, rng.choice((1, 2, 3)), bytes_max=LARGE_BYTES - 1)
    create(f"{RELAY}.{ROUTE}.monitor", count)
    create(f"{RELAY}.control", 1)
    create(f"{RELAY}.deadletter", 1)
    create(f"{RELAY}.inquiries", 1)


def _log_to(world: World) -> None:
    """Production's log lines belong to the trace, and cost nothing without one."""
    if not world.tracing:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
        )
        return

    def note(_logger: object, method: str, event: dict[str, Any]) -> str:
        name = world.current.process.name if world.current is not None else "-"
        words = [f"{key}={value}" for key, value in event.items() if key != "event"]
        world.trace(name, "log", method, event.get("event"), *words)
        raise structlog.DropEvent

    structlog.configure(processors=[note], wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
