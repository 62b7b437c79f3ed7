"""Services that capture messages by production's own `Capture`, in a simulated process that may die and come back.

Each notes what it was told, which the auditor holds against the database and the log; nothing else is remembered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from relay.capture.capture import Capture
from relay.message.envelope import Headers
from relay.message.errors import CaptureError, CaptureInDoubt, ConfigError, RelayError, Unreachable
from relay.world import clock, schedule
from tests.simulation.database_resource import SimulatedResource
from tests.simulation.databases import Backend, ConnectionLost, Database, StatementRefused, Table
from tests.simulation.evidence import Told
from tests.simulation.scheduler import Process, World

STOCK: Final = "stock"
RETRY_S: Final = 1.0
LAST_WORD_S: Final = 3.0
"""Enough for the upkeep's first round."""


class ChangedItsMind(Exception):
    """The application ends its own block."""


@dataclass
class Habits:
    """What a publisher does, drawn from the seed; shares are of captures."""

    captures: int = 20
    threads: int = 2
    messages: tuple[int, int] = (0, 4)
    items: int = 3
    """Rows that captures change: fewer make more of them wait for each other."""
    changes: tuple[int, int] = (0, 2)
    rolls_back: float = 0.15
    savepoint: float = 0.2
    bad_statement: float = 0.05
    poison: float = 0.0
    slow: float = 0.1
    slow_s: tuple[float, float] = (0.05, 8.0)
    pause_s: tuple[float, float] = (0.0, 1.0)
    restart_s: tuple[float, float] = (0.1, 5.0)
    further_headers: Callable[[], Headers] = list
    """What else a message asks for."""


@dataclass
class Notes:
    """What publishers were told, by capture (hex), and the ids that the destination cannot take."""

    told: dict[str, Told] = field(default_factory=dict)
    poison: set[tuple[str, str]] = field(default_factory=set)
    undone: set[tuple[str, str]] = field(default_factory=set)
    """Published inside a savepoint that was rolled back: they must never reach the log."""
    published: int = 0


class Publisher:
    """One service under one source; a new incarnation follows one that dies, until its captures are made."""

    def __init__(
        self,
        world: World,
        database: Database,
        source: str,
        topics: list[tuple[str, int]],
        habits: Habits,
        notes: Notes,
        resource: str = "shop",
    ) -> None:
        self.source = source
        self.process: Process | None = None
        self.done = False
        self.last_word = False
        self.incarnations = 0
        self._world = world
        self._database = database
        self._topics = topics
        self._habits = habits
        self._notes = notes
        self._resource = resource
        self._left = habits.captures
        self._numbers = itertools.count()
        database.create(Table(STOCK, {"item": "integer", "count": "integer"}, ("item",)))

    def start(self) -> None:
        """Start the service's process; it is started again whenever it dies."""
        self.incarnations += 1
        self.process = self._world.process(f"publisher {self.source} {self.incarnations}")
        self.process.on_death.append(self._died)
        self._world.spawn(self.process, "main", self._main)

    def start_for_the_last_time(self) -> None:
        """Start once more, without captures left: what earlier incarnations left unmarked is marked at a start."""
        self.done, self.last_word = False, True
        self.start()

    def _died(self) -> None:
        if not self.done:
            self._world.at(self._world.rng.uniform(*self._habits.restart_s), self.start)

    def _main(self) -> None:
        resource = SimulatedResource(self._resource, self._database)
        while True:
            try:
                capture = Capture(kafka={}, resource=resource, source=self.source)
                break
            except (Unreachable, ConfigError):
                clock.sleep(RETRY_S)
        threads = [
            schedule.start_thread(f"thread {n}", lambda: self._work(capture)) for n in range(self._habits.threads)
        ]
        for thread in threads:
            thread.join()
        clock.sleep(LAST_WORD_S if self.last_word else 0.0)
        while capture.backlog or capture.in_doubt:
            clock.sleep(RETRY_S)  # a service goes on living; its upkeep finds out what is in doubt
        capture.close()
        self.done = True

    def _work(self, capture: Capture) -> None:
        rng = self._world.rng
        while self._left > 0:
            self._left -= 1
            clock.sleep(rng.uniform(*self._habits.pause_s))
            self._one(capture)

    def _one(self, capture: Capture) -> None:
        told = self._notes.told
        name = ""
        block = capture.transaction()
        try:
            with block as tx:
                name = tx.id.hex()
                told[name] = Told.UNKNOWN
                self._fill(tx)
        except CaptureInDoubt:
            return
        except (CaptureError, ChangedItsMind, StatementRefused, ConnectionLost, Unreachable):
            if name:
                told[name] = Told.ABORTED
        except RelayError:
            return
        else:
            told[name] = Told.COMMITTED

    def _fill(self, tx: Any) -> None:
        rng, habits = self._world.rng, self._habits
        for _ in range(rng.randint(*habits.changes)):
            tx.execute(_changing(rng.randrange(habits.items)))
        for _ in range(rng.randint(*habits.messages)):
            self._publish(tx)
        if rng.random() < habits.savepoint:
            try:
                with tx.savepoint():
                    name = self._publish(tx)
                    if rng.random() < 0.5:
                        self._notes.undone.add((self.source, name))
                        tx.execute(_refused)
            except StatementRefused:
                pass
            if rng.random() < 0.5:
                self._publish(tx)
        if rng.random() < habits.slow:
            clock.sleep(rng.uniform(*habits.slow_s))
        if rng.random() < habits.bad_statement:
            tx.execute(_refused)
        if rng.random() < habits.rolls_back:
            raise ChangedItsMind

    def _publish(self, tx: Any) -> str:
        rng = self._world.rng
        number = next(self._numbers)
        topic, partitions = rng.choice(self._topics)
        poison = rng.random() < self._habits.poison
        data: Any = b"{broken" if poison else orjson.dumps({"number": number, "total": number})
        asked = dict(self._habits.further_headers())
        name = tx.publish(topic, type="ordered", data=data, id=f"{number}", partition=rng.randrange(partitions), headers=asked)
        self._notes.published += 1
        if poison:
            self._notes.poison.add((self.source, name))
        return str(name)


def _changing(item: int) -> Callable[[Backend], None]:
    def change(backend: Backend) -> None:
        backend.lock(STOCK, (item,))
        row = backend.get(STOCK, (item,)) or {"item": item, "count": 0}
        backend.put(STOCK, (item,), {**row, "count": row["count"] + 1})

    return change


def _refused(backend: Backend) -> None:
    raise StatementRefused("check_violation", STOCK)
