"""The fault atlas: each fault a named thing whose parameters the seed draws; every run switches some of them off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Final

from tests.simulation.broker import NewRecord
from tests.simulation.broker_groups import OffsetsOf
from tests.simulation.crew import OUTPUT, RELAY, ROUTE, Crew
from tests.simulation.scheduler import Process, World
from tests.simulation.site import Cluster

TRANSACTION_APIS: Final = ("EndTxn", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "InitProducerId")
COMPACTION_LAG_S: Final = 22.0
STRANGER: Final = 90_000
"""The first producer id of strangers."""
OTHER_APIS: Final = ("Produce", "ListOffsets", "OffsetFetch", "Heartbeat", "JoinGroup", "SyncGroup", "OffsetCommit")


class Faults:
    """Injects faults between the start of a run and ``until``; afterwards everything is healed."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        crew: Crew,
        until: float,
        only: frozenset[str] | None = None,
        *,
        storm: bool = False,
        never: Collection[str] = (),
    ) -> None:
        self.world = world
        self.cluster = cluster
        self.crew = crew
        self.until = until
        self.storm = storm
        self.crash_at: dict[str, int] = {}
        self.freeze_at: dict[str, tuple[int, float]] = {}
        rng = world.rng
        # Each fault has a coin of its own, so that a new one leaves the runs without it as they were.
        coins = {name: Random(f"{world.seed}/{name}").random() for name in ATLAS}
        self.names = [name for name in ATLAS if (coins[name] < RARE.get(name, 0.5) if only is None else name in only)]
        self.names = [name for name in self.names if name not in never]
        if storm and only is None:
            self.names = [*STORM, *rng.sample(["kills", "slow_markers", "freezes", "resets"], rng.randrange(0, 3))]
        for name in self.names:
            ATLAS[name](self)
        world.trace("faults", *self.names)
        world.at(until, self.heal)

    def sometime(self, action: Callable[[], None], count: int) -> None:
        """Run ``action`` at ``count`` times of the seed's choice."""
        for _ in range(count):
            self.world.at(self.world.rng.uniform(0.3, self.until), action)

    def victim(self) -> Process | None:
        """Choose a living worker."""
        living = [process for process in self.crew.running.values() if process.alive]
        return self.world.rng.choice(living) if living else None

    def passed(self, process: Process, point: str) -> None:
        """A process passes a crash point of production's code."""
        if not process.alive or self.world.now > self.until:
            return
        freeze = self.freeze_at.pop(point, None)
        if freeze is not None:
            if freeze[0] == 0:
                process.freeze(freeze[1])
                self.world.call()
            else:
                self.freeze_at[point] = (freeze[0] - 1, freeze[1])
        left = self.crash_at.get(point)
        if left is None:
            return
        if left == 0:
            del self.crash_at[point]
            process.kill_at("crash point", point)
        self.crash_at[point] = left - 1

    def heal(self) -> None:
        """Nothing goes wrong from here on."""
        self.world.trace("healed")
        self.cluster.network.heal()
        self.cluster.marker_slow = 0.0
        self.cluster.hang_rate = 0.0
        for left_out in self.cluster.transactions.leaderless.values():
            left_out.clear()
        for process in self.crew.running.values():
            process.kill_in = process.freeze_in = None
            process.thawed_at = min(process.thawed_at, self.world.now)


def kills(faults: Faults) -> None:
    """SIGKILL at any time."""

    def strike() -> None:
        victim = faults.victim()
        if victim is not None:
            victim.kill()

    faults.sometime(strike, faults.world.rng.randrange(1, 6))


def kills_between_calls(faults: Faults) -> None:
    """SIGKILL between two calls, often soon after the last one: also within recovery."""
    rng = faults.world.rng

    def strike() -> None:
        victim = faults.victim()
        if victim is not None:
            victim.kill_in = rng.randrange(1, 60)

    faults.sometime(strike, rng.randrange(1, 8))


def freezes(faults: Faults) -> None:
    """SIGSTOP, for longer than a session or not."""
    rng = faults.world.rng

    def strike() -> None:
        victim = faults.victim()
        if victim is not None:
            victim.freeze_in = (rng.randrange(1, 60), rng.choice((0.3, 3.0, 8.0, 14.0)) * (0.5 + rng.random()))

    faults.sometime(strike, rng.randrange(1, 4))


def crash_points(faults: Faults) -> None:
    """Death at named steps of production's code, at the n-th time they are passed."""
    rng = faults.world.rng
    for point in rng.sample(CRASH_POINTS, rng.randrange(1, 5)):
        faults.crash_at[point] = rng.randrange(0, 12)


def strays(faults: Faults) -> None:
    """Transactional requests late, held, lost, or without an answer: EndTxn above all (KAFKA-17754)."""
    rng = faults.world.rng
    rates = faults.cluster.weather.rates
    if faults.storm:
        # The repeat gets through at once, and the first copy comes while the next transaction is open.
        rates["EndTxn"] = 0.7
        faults.cluster.network.reconnect_s = (0.0005, 0.004)
        faults.cluster.weather.late_s = (0.02, 0.12)
        faults.cluster.weather.kinds = ("late",)
        return
    rates["EndTxn"] = rng.choice((0.1, 0.3, 0.6))
    faults.cluster.weather.late_s = rng.choice(((0.002, 4.0), (0.02, 0.2), (0.05, 0.5)))
    faults.cluster.weather.kinds = rng.choice((("late",), ("late", "held", "lost", "unanswered")))
    for api in TRANSACTION_APIS[1:]:
        if rng.random() < 0.4:
            rates[api] = rng.choice((0.03, 0.15))


def bad_lines(faults: Faults) -> None:
    """Any other request meets the same."""
    rng = faults.world.rng
    for api in OTHER_APIS:
        if rng.random() < 0.5:
            faults.cluster.weather.rates[api] = rng.choice((0.01, 0.05))


def resets(faults: Faults) -> None:
    """Every connection of a worker, or of all, is reset at once."""

    def strike() -> None:
        victim = faults.victim()
        everyone = faults.world.rng.random() < 0.3
        if victim is not None:
            faults.cluster.network.reset_all(None if everyone else victim.name)

    faults.sometime(strike, faults.world.rng.randrange(1, 8))


def broker_pauses(faults: Faults) -> None:
    """The broker stops processing for a while; then it processes what has come, in any order of connections."""
    rng = faults.world.rng

    def strike() -> None:
        broker = rng.choice((None, *range(faults.cluster.brokers)))
        faults.cluster.network.pause_broker(rng.choice((0.2, 2.0, 9.0)) * (0.5 + rng.random()), broker)

    faults.sometime(strike, rng.randrange(1, 4))


def broker_restarts(faults: Faults) -> None:
    """The broker goes and comes back with what it acknowledged; connections break, sessions begin anew."""

    def strike() -> None:
        faults.cluster.network.reset_all()
        faults.cluster.network.pause_broker(faults.world.rng.uniform(0.5, 4.0))
        for group in faults.cluster.groups.by_name.values():
            group.expect_again()

    faults.sometime(strike, 1)


def partitions(faults: Faults) -> None:
    """A worker reaches nothing for a while."""
    rng = faults.world.rng

    def strike() -> None:
        victim = faults.victim()
        if victim is not None:
            faults.cluster.network.cut_off[victim.name] = faults.world.now + rng.choice((1.0, 5.0, 12.0))

    faults.sometime(strike, rng.randrange(1, 3))


def deaf_members(faults: Faults) -> None:
    """A worker's heartbeats go unheard while everything else works: it delivers on after the group has dropped it."""
    rng = faults.world.rng

    def strike() -> None:
        victim = faults.victim()
        if victim is not None:
            faults.cluster.network.deaf[victim.name] = faults.world.now + rng.uniform(5.0, 15.0)

    faults.sometime(strike, rng.randrange(1, 3))


def silent_connections(faults: Faults) -> None:
    """A worker's connections fall silent, as behind a firewall that forgot them."""

    def strike() -> None:
        victim = faults.victim()
        if victim is not None:
            faults.cluster.network.silence(victim.name)

    faults.sometime(strike, faults.world.rng.randrange(1, 4))


def live_twins(faults: Faults) -> None:
    """A second process starts under a living worker's name: one of the two stops, and is not started again."""

    def strike() -> None:
        living = [number for number, process in faults.crew.running.items() if process.alive]
        if living:
            faults.crew.start_twin(faults.world.rng.choice(living))

    faults.sometime(strike, 1)


def frozen_points(faults: Faults) -> None:
    """A long freeze at named steps of production's code, within recovery above all."""
    rng = faults.world.rng
    for point in rng.sample(CRASH_POINTS, rng.randrange(1, 5)):
        faults.freeze_at[point] = (rng.randrange(0, 12), rng.uniform(6.5, 16.0))


def slow_markers(faults: Faults) -> None:
    """Transaction markers reach some partitions much later than others."""
    faults.cluster.marker_slow = faults.world.rng.choice((0.05, 0.3))


def hanging_calls(faults: Faults) -> None:
    """After a reset, sending offsets may block for ever (librdkafka #5456)."""
    faults.cluster.hang_rate = faults.world.rng.choice((0.05, 0.3))


def compactions(faults: Faults) -> None:
    """The cleaner runs, also while somebody reads; the active segment is the last record at least.

    An hour of lag protects the monitor from it in production; here, where everything is a hundred times faster, the
    lag is longer than any freeze.
    """
    world, topics = faults.world, faults.cluster.topics.by_name

    def clean() -> None:
        for name, lag_s in ((f"{RELAY}.control", 0.0), (f"{RELAY}.{ROUTE}.monitor", COMPACTION_LAG_S)):
            for partition in topics[name].partitions:
                below = world.rng.randrange(partition.start, max(partition.end, partition.start + 1))
                gone = partition.compact(below, world.now - lag_s)
                if gone:
                    world.trace("compacted", name, partition.place.partition, gone)
        world.at(world.rng.uniform(1.0, 4.0), clean)

    world.at(1.0, clean)


def clock_jumps(faults: Faults) -> None:
    """The wall clock of a worker jumps; durations are measured on another one."""

    def strike() -> None:
        victim = faults.victim()
        if victim is not None:
            victim.clock_offset_s += faults.world.rng.uniform(-3600.0, 3600.0)

    faults.sometime(strike, 3)


def lost_markers(faults: Faults) -> None:
    """Partitions without a leader for a moment: transactions that are aborted meanwhile stay open in them."""
    _without_leaders(faults, "lost_markers", (OUTPUT, f"{RELAY}.{ROUTE}.monitor"), commit=False)


def lost_commits(faults: Faults) -> None:
    """The same for transactions that are committed meanwhile; dead letters are outputs, too."""
    _without_leaders(
        faults, "lost_commits", (OUTPUT, f"{RELAY}.{ROUTE}.monitor", f"{RELAY}.deadletter"), commit=True
    )


def _without_leaders(faults: Faults, fault: str, names: Sequence[str], *, commit: bool) -> None:
    world, leaderless = faults.world, faults.cluster.transactions.leaderless
    rng = Random(f"{world.seed}/{fault}/places")
    places: list[object] = [p.place for name in names for p in faults.cluster.topics.by_name[name].partitions]
    places.append(OffsetsOf(f"{RELAY}.{ROUTE}"))

    def strike() -> None:
        leaderless[commit] = chosen = set(rng.sample(places, rng.randrange(1, len(places) + 1)))
        world.at(rng.uniform(1.0, 6.0), chosen.clear)

    for _ in range(rng.randrange(4, 12)):
        world.at(rng.uniform(0.3, faults.until), strike)


def strangers(faults: Faults) -> None:
    """A stranger's long transactions in the output; not beside commits that hang, which nobody tells from them (DESIGN.md)."""
    world = faults.world
    rng = Random(f"{world.seed}/strangers/places")
    if "lost_commits" in faults.names:
        return

    def open_one(producer_id: int) -> None:
        partition = rng.choice(faults.cluster.topics.by_name[OUTPUT].partitions)
        left = rng.uniform(1.0, 40.0)
        for sequence in range(rng.randrange(1, 4)):
            record = NewRecord(b"stranger", b"of a stranger", None, 0)
            world.at(left * sequence / 4, partition.append, [record], producer_id, 0, sequence, "stranger", lambda *_: 0)
        world.at(left, lambda: partition.end_transaction(producer_id, 0, commit=False))

    for number in range(rng.randrange(1, 8)):
        world.at(rng.uniform(0.3, faults.until), open_one, STRANGER + number)


RARE: Final = {"silent_connections": 0.1, "live_twins": 0.1, "lost_markers": 0.2, "lost_commits": 0.2, "strangers": 0.1}
"""Shares of runs with a fault, where it is not half of them."""
STORM: Final = ("strays", "deaf_members", "frozen_points")
"""What the protocol was made for: strays while memberships end and workers stand still."""
CRASH_POINTS: Final = (
    "sealed.begun", "sealed.outputs", "sealed.entries", "sealed.offsets", "sealed.committing", "sealed.committed",
    "recovery.started", "recovery.fencing", "recovery.fenced", "recovery.read", "recovery.settled", "recovery.claiming",
    "recovery.claimed",
)  # fmt: skip
ATLAS: Final[dict[str, Callable[[Faults], None]]] = {
    fault.__name__: fault
    for fault in (
        kills, kills_between_calls, freezes, crash_points, strays, bad_lines, resets, broker_pauses, broker_restarts,
        partitions, deaf_members, silent_connections, live_twins, frozen_points, slow_markers, hanging_calls,
        compactions, clock_jumps, lost_markers, lost_commits, strangers,
    )
}  # fmt: skip
