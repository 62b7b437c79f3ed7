"""The plan of the accidents is a function of its seed: what happens when, to whom and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, log
from random import Random
from typing import Final, NamedTuple


class Struck(Enum):
    """Who suffers."""

    WORKERS = "relay workers"
    SOURCES = "publishers"
    BROKERS = "brokers"
    NETWORK = "network"
    DATABASE = "database"


class Kind(Enum):
    """What may happen; the values are what people read."""

    WORKER_KILL = "kill a worker"
    WORKER_FREEZE = "freeze a worker past its session"
    STORM = "workers come and go"
    CLOCK_JUMP = "a worker's clock jumps"
    WORKER_DISK_FULL = "the workers' disk is full"
    PUBLISHER_KILL = "kill a publisher"
    BROKER_BOUNCE = "bounce a broker cleanly"
    BROKER_KILL = "kill a broker"
    BROKER_PAUSE = "pause a broker"
    BROKER_DISK_FULL = "a broker's disk is full"
    LATE_COMMIT = "a commit arrives late"
    COMMIT_ANSWER_LOST = "the answer to a commit is lost"
    PRODUCE_LOST = "a produce request is lost"
    PRODUCE_ANSWER_LOST = "the answer to a produce is lost"
    OFFSETS_ANSWER_LOST = "the answer to offsets is lost"
    PARTITIONS_LOST = "adding partitions is lost"
    BACKEND_KILL = "kill a database backend"
    BACKEND_END = "terminate a database session"
    DATABASE_RESTART = "restart the database"
    DATABASE_CRASH = "crash the database"
    DATABASE_DISK_FULL = "the database's disk is full"


class Nature(NamedTuple):
    """Whom a kind strikes, and the least and the most seconds it lasts (0: it is over at once)."""

    struck: Struck
    least_s: float = 0.0
    most_s: float = 0.0


SESSION_S: Final = 6.0
"""The session timeout of the demonstration's workers, the shortest that brokers take."""

NATURES: Final[dict[Kind, Nature]] = {
    Kind.WORKER_KILL: Nature(Struck.WORKERS),
    Kind.WORKER_FREEZE: Nature(Struck.WORKERS, SESSION_S + 1, SESSION_S + 9),
    Kind.STORM: Nature(Struck.WORKERS, 6.0, 10.0),
    Kind.CLOCK_JUMP: Nature(Struck.WORKERS, 6.0, 20.0),
    # Checkpoints are written every 30 s, and when partitions are handed over.
    Kind.WORKER_DISK_FULL: Nature(Struck.WORKERS, 20.0, 35.0),
    Kind.PUBLISHER_KILL: Nature(Struck.SOURCES),
    Kind.BROKER_BOUNCE: Nature(Struck.BROKERS, 0.5, 4.0),
    Kind.BROKER_KILL: Nature(Struck.BROKERS, 0.5, 4.0),
    Kind.BROKER_PAUSE: Nature(Struck.BROKERS, 2.0, 12.0),
    Kind.BROKER_DISK_FULL: Nature(Struck.BROKERS, 1.0, 5.0),
    # Longer than the broker's answer to the repeat takes, shorter than a transaction may last.
    Kind.LATE_COMMIT: Nature(Struck.NETWORK, 0.2, 3.0),
    Kind.COMMIT_ANSWER_LOST: Nature(Struck.NETWORK),
    Kind.PRODUCE_LOST: Nature(Struck.NETWORK),
    Kind.PRODUCE_ANSWER_LOST: Nature(Struck.NETWORK),
    Kind.OFFSETS_ANSWER_LOST: Nature(Struck.NETWORK),
    Kind.PARTITIONS_LOST: Nature(Struck.NETWORK),
    Kind.BACKEND_KILL: Nature(Struck.DATABASE),
    Kind.BACKEND_END: Nature(Struck.DATABASE),
    Kind.DATABASE_RESTART: Nature(Struck.DATABASE, 0.2, 3.0),
    Kind.DATABASE_CRASH: Nature(Struck.DATABASE, 0.2, 3.0),
    Kind.DATABASE_DISK_FULL: Nature(Struck.DATABASE, 1.0, 5.0),
}
ALL: Final = tuple(Kind)
SAFE: Final = (Kind.WORKER_KILL, Kind.WORKER_FREEZE)
"""What may be done on somebody's system: it touches only worker processes that the run has started itself."""

FIRST_S: Final = 4.0
GAP_S: Final = (2.0, 6.0)
QUIET_S: Final = 5.0
"""Nothing begins in the last seconds, or it would be healed before it is felt."""
REST_S: Final = {Struck.BROKERS: 12.0, Struck.DATABASE: 3.0}
"""Of these one at a time: two absent brokers of three, and nobody can write. A broker takes seconds to start."""


JUMPS: Final = 3
JUMP_S: Final = (60.0, 10 * 86400.0)
"""A clock jumps by a minute to ten days, each power of ten as likely as the next."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One accident: ``at_s`` after the beginning, ``pick`` in [0, 1) chooses among the targets there are then."""

    at_s: float
    kind: Kind
    pick: float
    lasts_s: float

    def jumps_s(self) -> list[float]:
        """Return by how many seconds a clock is wrong after each of its jumps, ahead or behind, in turn."""
        chance = Random(f"jumps/{self.pick}")  # noqa: S311 - repeatable on purpose
        least, most = (log(limit) for limit in JUMP_S)
        first = chance.choice((1, -1))
        return [first * (-1) ** n * round(exp(chance.uniform(least, most))) for n in range(JUMPS)]


def plan(seed: int, seconds: float, kinds: Sequence[Kind] = ALL, session_s: float = SESSION_S) -> list[Fault]:
    """Return the accidents of so many seconds in their order; every kind has its turn before one has a second.

    ``session_s`` is the workers' session timeout: a freeze lasts longer.
    """
    chance = Random(f"nemesis/{seed}")  # noqa: S311 - repeatable on purpose
    last_s = seconds - min(QUIET_S, seconds / 4)
    now, free = min(FIRST_S, seconds / 4), dict.fromkeys(REST_S, 0.0)
    found: list[Fault] = []
    while now <= last_s:
        for kind in chance.sample(list(kinds), len(kinds)):
            struck, least_s, most_s = NATURES[kind]
            longer_s = session_s - SESSION_S if kind is Kind.WORKER_FREEZE else 0.0
            lasts_s, pick = round(chance.uniform(least_s, most_s) + longer_s, 2), chance.random()
            at_s = round(max(now, free.get(struck, 0.0)), 2)
            now += chance.uniform(*GAP_S)
            if at_s > last_s:
                continue
            if struck in REST_S:
                free[struck] = at_s + lasts_s + REST_S[struck]
            found.append(Fault(at_s, kind, pick, lasts_s))
    return sorted(found, key=lambda fault: fault.at_s)
