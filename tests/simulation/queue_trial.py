"""One seed of two queues: publishers put, handlers work and publish children, workers die, freeze and lose answers; then the audit.

The workers are production's own (`relay.work`), composed as `relay.work.assembly` does it, over `queue_site`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from relay.message.errors import InDoubt, Retriable
from relay.queue.attempts import Outcomes
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder, QueueStore
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState
from relay.work.backoff import Backoff
from relay.work.desks import Desks
from relay.work.forgetting import Forgetting
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.stores import Deciding, Stores
from relay.work.subscriber import Unusable, subscriber
from relay.work.upkeep import Upkeep
from relay.work.worker import Limits, Worker
from relay.world import clock, randomness, schedule
from tests.simulation.installation import installed
from tests.simulation.queue_audit import audit
from tests.simulation.queue_site import Book, Reach, Shop, ShopDesk, Weather
from tests.simulation.scheduler import BusyLoop, Process, World
from tests.simulation.trial import Outcome, _log_to

FAULTS_S: Final = 15.0
HEALING_S: Final = 120.0
LOOK_S: Final = 0.5
FORGET_S: Final = 0.1
"""Outcomes of attempts are forgotten this often: too early by however little, some seed must show it."""
SALES, CREDIT = "sales", "credit"
NOWHERE: Final = Path("/nowhere/marks")
P = PublisherState


class _Mark:
    """Stands for a worker's file: without one, only leases tell that a worker is dead."""

    def blame(self, ticket: object) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """Nothing to remove."""


@dataclass(frozen=True)
class Habits:
    """What this run's handlers do, and how long things take."""

    lease_s: float
    concurrency: int
    batch: int
    work_s: tuple[float, float]
    fails: float
    unusable: bool
    decides: str
    """``queue``: no database. ``shop``: a database of its own. ``both``: the queue's states lie in it."""


class QueueRun:
    """Two queues, their workers and a publisher."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.world = World(seed, tracing=tracing)
        _log_to(self.world)
        rng = self.world.rng
        self.weather = Weather()
        audience = rng.choice((
            Audience((Group("customer", ("customer",)),)),
            Audience((Group("clerks", ("ann", "bob")),)),
            Audience((Group("clerks", ("ann", "bob")), Group("customer", ("customer",))), in_order=rng.random() < 0.5),
        ))  # fmt: skip
        approval = Audience((Group("approval", ("approval",)),))
        self.books = {
            SALES: Book(self.world, QueueSettings(SALES, audience, tries=1000), self.weather),
            CREDIT: Book(self.world, QueueSettings(CREDIT, approval, tries=1000), self.weather),
        }
        self.habits = Habits(
            lease_s=rng.choice((1.5, 4.0)),
            concurrency=rng.choice((1, 2, 4)),
            batch=rng.choice((0, 0, 5)),
            work_s=(0.0, rng.choice((0.02, 0.3, 3.0))),
            fails=rng.choice((0.0, 0.0, 0.2)),
            unusable=rng.random() < 0.5,
            decides=rng.choice(("queue", "shop", "both")),
        )
        self.shop = Shop(self.world, self.weather, self.books[SALES] if self.habits.decides == "both" else None)
        self.messages = rng.choice((5, 15, 30))
        self.deaths = 0
        self.faults: list[str] = []
        self.put_all = False
        self.healed = False
        self.uncaught: list[str] = []
        self._workers: dict[str, Process] = {}

    def run(self) -> list[str]:
        """Let it happen, heal, wait, audit."""
        world, rng = self.world, self.world.rng
        with installed(world, crash_points=self._passed):
            names = [m for group in self.books[SALES].settings.audience.groups for m in group.members]
            for name in [*names, *(name for name in names if rng.random() < 0.5)]:
                self._start(SALES, name, len(self._workers))
            self._start(CREDIT, "approval", len(self._workers))
            world.at(0.0, self._publish)
            self._plan()
            problems: list[str] = []
            world.at(FAULTS_S, self._heal)
            world.at(FAULTS_S + LOOK_S, self._look)
            try:
                world.run(FAULTS_S + HEALING_S)
            except BusyLoop as busy:
                problems.append(f"busy loop (I18): {busy}")
            problems += [f"uncaught: {reason}" for reason in self.uncaught]
            if not self._is_done():
                problems.append(f"not done (I18) after {world.now:.0f} s: {self._standing()}")
            return problems or audit(self.books[SALES], self.books[CREDIT], self.shop, decides=self.habits.decides)

    # Processes ----------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        process = self.world.process("publisher")
        store = Reach(self.world, self.books[SALES])

        def put() -> None:
            rng = self.world.rng
            for number in range(self.messages):
                message = NewMessage(
                    "/pos", f"sale-{number}", b"%d" % number, lane=rng.choice((b"a", b"b", b"c", None)),
                    priority=rng.choice((0, 0, 5)), delay_ms=rng.choice((0, 0, 0, 700)),
                )  # fmt: skip
                while True:
                    try:
                        store.put([message], clock.wall_ms())
                        break
                    except (InDoubt, Retriable):  # put again: a repeat is known by its id
                        clock.sleep(0.1)
                clock.sleep(rng.uniform(0.0, FAULTS_S * 1.2 / self.messages))
            self.put_all = True

        self.world.spawn(process, "put", put)

    def _start(self, queue: str, name: str, number: int) -> None:
        process = self.world.process(f"{name}-{number}")
        self._workers[process.name] = process

        def work() -> None:
            try:
                worker = self._assemble(queue, name)
                worker.run()
            except (InDoubt, Retriable):
                pass  # The supervisor starts it again.
            finally:
                if process.alive:
                    process.kill()

        def again() -> None:
            self.deaths += 1
            self.world.at(self.world.rng.uniform(0.1, 2.0), self._start, queue, name, number)

        process.on_death.append(again)
        self.world.spawn(process, "work", work)

    def _assemble(self, queue: str, name: str) -> Worker:
        world, habits = self.world, self.habits
        uses_shop = habits.decides != "queue" and queue == SALES
        near = (queue,) if uses_shop and habits.decides == "both" else ()
        gate = schedule.lock()
        locks = {known: gate if known in near else schedule.lock() for known in self.books}
        stores = Stores(locks, lambda known: cast("QueueStore", Reach(world, self.books[known])))
        deciding = "resource:shop" if uses_shop and not near else f"queue:{queue}"
        holder = Holder(randomness.uuid_bytes(), name, 0, deciding)
        backoff = Backoff(0.1, 1.0)
        beside = stores.beside(queue)
        outcomes = {"shop": self._outcomes}
        upkeep = Upkeep(queue, beside, partial(Deciding, beside, outcomes), holder, NOWHERE, habits.lease_s, backoff)
        desks = Desks(lambda: ShopDesk(self.shop, gate), 1) if uses_shop else None
        with locks[queue]:
            stores[queue].enter(holder)
        runner = Runner(self._handler(queue, name, uses_shop), Place(queue, name, deciding, stores, locks), desks)
        limits = Limits(habits.concurrency, habits.batch, backoff=backoff)
        runner.forgetting = Forgetting(FORGET_S)
        return Worker(
            stores[queue], name, holder.id, runner, locks[queue], limits, upkeep, cast("Any", _Mark()),
            done=runner.forgetting.done,
        )  # fmt: skip

    def _outcomes(self, lent: ExitStack) -> Outcomes:
        return cast("Outcomes", _Outcomes(self.shop, lent))

    def _handler(self, queue: str, name: str, uses_shop: bool) -> Any:
        habits, world = self.habits, self.world

        def one(message: Message, db: Any = None) -> None:
            world.sleep(world.rng.uniform(*habits.work_s))
            if not self.healed and world.rng.random() < habits.fails:
                raise ValueError("this time not")
            if queue == SALES and habits.unusable and int(message.id.removeprefix("sale-")) % 7 == 3:
                raise Unusable("never")
            if db is not None:
                db.execute("effect", (queue, message.handle, name))
            if queue == SALES:
                message.publish(CREDIT, message.value)

        def handle(given: Any, db: Any = None) -> None:
            for message in given if isinstance(given, list) else [given]:
                one(message, db)

        batch = habits.batch or False
        return subscriber(queue, resource="shop" if uses_shop else None, batch=batch)(handle)

    # Faults -------------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Draw which faults this run has (swarm style: each run leaves some out)."""
        rng, world = self.world.rng, self.world
        for name in ("refused", "lost_before", "lost_after"):
            if rng.random() < 0.4:
                setattr(self.weather, name, rng.choice((0.01, 0.05, 0.15)))
                self.faults.append(name)
        if rng.random() < 0.3:
            self.weather.latency_s = (0.001, rng.choice((0.1, 0.5)))
            self.faults.append("slow")
        for kind in ("kill", "freeze", "kill in a call"):
            if rng.random() < 0.6:
                self.faults.append(kind)
                for _ in range(rng.choice((1, 3, 8))):
                    world.at(rng.uniform(0.0, FAULTS_S), self._strike, kind)
        self._points = rng.choice((0.0, 0.02, 0.1))
        if self._points:
            self.faults.append("crash points")

    def _strike(self, kind: str) -> None:
        rng = self.world.rng
        living = [process for process in self._workers.values() if process.alive]
        if not living:
            return
        process = rng.choice(living)
        if kind == "kill":
            process.kill()
        elif kind == "freeze":
            process.freeze(rng.choice((0.5, self.habits.lease_s * 1.5, self.habits.lease_s * 4)))
        else:
            process.kill_in = rng.randint(1, 40)

    def _passed(self, process: Process, point: str) -> None:
        if not self.healed and process.name != "publisher" and self.world.rng.random() < self._points:
            process.kill_at(point)

    def _heal(self) -> None:
        self.healed = True
        self.weather.refused = self.weather.lost_before = self.weather.lost_after = 0.0
        self.weather.latency_s = (0.0005, 0.01)
        self.world.trace("healed")

    def _look(self) -> None:
        if self._is_done():
            self.world.stop()
        else:
            self.world.at(LOOK_S, self._look)

    def _is_done(self) -> bool:
        live = (P.PUT, P.REVEALED)
        # Inside a transaction stands what may be taken back yet: the audit must not read it.
        if any(gate.locked() for gate in (self.shop.gate, *(book.gate for book in self.books.values()))):
            return False
        return self.put_all and not any(view.state in live for book in self.books.values() for view in book.find_all())

    def _standing(self) -> list[str]:
        rest = [(name, view) for name, book in self.books.items() for view in book.find_all() if view.state in (P.PUT, P.REVEALED)]
        return [f"{name} {view.handle} {view.state.name} {[s.state.name for s in view.subscribers]}" for name, view in rest[:3]]


class _Outcomes:
    """The shop's outcomes in a transaction each, as recovery asks for them."""

    def __init__(self, shop: Shop, lent: ExitStack) -> None:
        self._shop = shop
        del lent

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        desk = ShopDesk(self._shop, schedule.lock())
        desk.begin()
        try:
            stands = desk.settle(attempt, committed=committed, now=now)
            desk.commit()
        except BaseException:
            desk.rollback()
            raise
        return stands


def run_queue(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed of two queues."""
    run = QueueRun(seed, tracing=tracing)
    outcome = Outcome(seed, faults=run.faults)
    outcome.problems = run.run()
    outcome.messages, outcome.deaths = run.messages, run.deaths
    outcome.lines, outcome.seconds, outcome.steps = run.world.lines, run.world.now, run.world.steps
    return outcome

