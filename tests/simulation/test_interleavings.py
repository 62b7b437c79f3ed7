"""Single interleavings that the protocol closes, brought about on purpose; `tests.mutations` removes their guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from confluent_kafka import KafkaException

from relay.message.envelope import OUT_DIGEST, OUT_INSTANCE, OUT_N
from relay.message.errors import InDoubt, RelayError, Retriable
from relay.transfer.cursor import Verdict
from relay.transfer.sending import Sending
from relay.transfer.timers import ResendTimes
from relay.world import clock
from tests.contracts.kafka_systems import SimulatedKafka, until
from tests.contracts.table_databases import LEDGER, P0, message, plan
from tests.simulation import kafka_ports
from tests.simulation.broker_groups import OffsetsOf
from tests.simulation.calling import CallingWorld
from tests.simulation.database_cursor import SimulatedCursor
from tests.simulation.databases import Backend, Database, Weather
from tests.simulation.installation import installed
from tests.simulation.interleavings import GROUP, Stage
from tests.simulation.scratch_sql import run_sql

REFUSED = (RelayError, KafkaException)
RESEND_S = 1.0


@pytest.fixture
def world() -> CallingWorld:
    return CallingWorld(7)


@pytest.fixture
def stage(world: CallingWorld) -> Iterator[Stage]:
    made = Stage(world, SimulatedKafka(world))
    ports = kafka_ports.stand_ins(made.system.cluster, kafka_ports.Disks())
    with installed(world, crash_points=made.passed, also=ports):
        yield made


def test_a_late_end_of_a_predecessors_claim_shows_nothing_of_it(stage: Stage) -> None:
    """The predecessor stood still since it took over; a copy of the EndTxn of its claim would publish its outputs."""
    old = stage.worker("old")
    old.recover()
    late = stage.end_again(old)
    waiting = old.batch(0, 1, 2, first=0, position=3)
    stage.drop(old)
    heir = stage.worker("heir")
    heir.recover()
    heir.deliver(heir.batch(0, 1, 2, first=0, position=3))

    stage.when(old, "sealed.flushed", late)
    with pytest.raises(REFUSED):
        old.deliver(waiting)

    assert stage.delivered() == [0, 1, 2]


def test_whom_the_group_has_dropped_does_not_take_over_again(stage: Stage) -> None:
    """Nothing moves in a claim, so only the offsets that it sends all the same ask the group whether it is a member."""
    old = stage.worker("old")
    old.recover()
    old.deliver(old.batch(0, 1, first=0, position=2))
    stage.drop(old)
    heir = stage.worker("heir")
    heir.recover()

    with pytest.raises(REFUSED):
        old.recover()

    heir.recover()
    heir.deliver(heir.batch(2, 3, first=2, position=4))
    assert stage.delivered() == [0, 1, 2, 3]


def test_nothing_is_decided_while_an_open_transaction_hides_the_end_of_the_monitor(stage: Stage) -> None:
    """A read_committed end lies below what the predecessor delivered above its position."""
    old = stage.worker("old")
    old.recover()
    stranger = stage.system.instance("stranger")
    stranger.init()
    stranger.begin()
    stranger.produce(stage.monitor, b"stranger", b"")
    stranger.flush()
    with pytest.raises(InDoubt):  # nor does its own commit show there
        old.deliver(old.batch(2, 3, first=0, position=0))
    stage.drop(old)
    heir = stage.worker("heir")

    heir.recover_until_it_can_be_told()
    heir.deliver(heir.batch(0, 1, 2, 3, first=0, position=4))

    assert sorted(stage.delivered()) == [0, 1, 2, 3]


@pytest.mark.parametrize("heirs_id", ["old", "heir"])
@pytest.mark.parametrize("hanging", ["out", "monitor", "offsets", "out monitor offsets"])
def test_what_hangs_of_an_aborted_transaction_never_shows(stage: Stage, hanging: str, heirs_id: str) -> None:
    """Partitions without a leader are left out when it is aborted; later commits under its id would end it there."""
    places = {"out": stage.out, "monitor": stage.monitor, "offsets": OffsetsOf(GROUP)}
    old = stage.worker("old")
    old.recover()
    old.deliver(old.batch(0, first=0, position=1))
    left_out = stage.system.cluster.transactions.leaderless[False]

    def die() -> None:
        left_out.update(places[name] for name in hanging.split())
        raise RelayError("the process ends")

    stage.when(old, "sealed.committing", die)
    with pytest.raises(RelayError):
        old.deliver(old.batch(1, 2, first=1, position=3))
    with stage.world.acting_as(old.process):
        stage.system.instance("old").init()  # or its time is over: the coordinator aborts what is open
    left_out.clear()
    stage.drop(old)
    heir = stage.worker("heir", heirs_id)

    heir.recover_until_it_can_be_told()
    heir.deliver(heir.batch(1, 2, first=1, position=3))
    heir.deliver(heir.batch(3, first=3, position=4))

    assert stage.delivered() == [0, 1, 2, 3]


def test_what_touched_a_place_never_shows_although_that_hangs_in_turn(stage: Stage) -> None:
    """Another worker's transaction took long, and so it was looked whether anything of ours was open there."""
    other = stage.system.instance("other")
    other.init()
    other.begin()
    marks = [(OUT_INSTANCE, b"ab" * 16), (OUT_N, b"1"), (OUT_DIGEST, b"63")]
    other.produce(stage.out, None, b"", marks)
    other.flush()
    worker = stage.worker("worker")
    left_out = stage.system.cluster.transactions.leaderless[False]
    left_out.add(stage.out)
    with pytest.raises(Retriable):
        worker.recover()
    left_out.clear()
    other.commit()

    worker.recover_until_it_can_be_told()
    worker.deliver(worker.batch(0, 1, first=0, position=2))

    assert stage.delivered() == [0x63, 0, 1]


@pytest.mark.parametrize("hanging", ["monitor", "offsets", "monitor offsets"])
def test_what_hangs_of_a_committed_transaction_is_known_by_its_outputs(stage: Stage, hanging: str) -> None:
    places = {"monitor": stage.monitor, "offsets": OffsetsOf(GROUP)}
    old = stage.worker("old")
    old.recover()
    stage.system.cluster.transactions.leaderless[True].update(places[name] for name in hanging.split())
    with pytest.raises(InDoubt) if "monitor" in hanging else nullcontext():
        old.deliver(old.batch(0, 1, first=0, position=2))
    stage.system.cluster.transactions.leaderless[True].clear()
    stage.drop(old)
    heir = stage.worker("heir")

    heir.recover_until_it_can_be_told()
    heir.deliver(heir.batch(0, 1, 2, first=0, position=3))

    assert stage.delivered() == [0, 1, 2]


class Table:
    """A table behind a simulated database, and the thread that sends batches to it."""

    def __init__(self, world: CallingWorld) -> None:
        self.database = Database(world)
        self.database.create_relay_tables("uuid")
        run_sql(Backend(self.database, "test", 1.0, 30.0), LEDGER)
        self.cursor = SimulatedCursor(self.database, plan())
        self.cursor.claim({P0: b"t" * 16})
        self.sending = Sending(
            self.cursor, ResendTimes(RESEND_S, 4 * RESEND_S, lambda: 0.0), clock.monotonic
        )
        self._answers: list[list[Verdict]] = []

    def send(self, *offsets: int) -> None:
        self.sending.send(
            {P0: max(offsets) + 1}, self.cursor.prepare([message(offset) for offset in offsets])
        )

    def fall_silent(self) -> None:
        """What is asked now is never answered."""
        self.database.weather = Weather(latency_s=(1e6, 1e6))

    def speak_again(self) -> None:
        self.database.weather = Weather()

    def answered(self, count: int) -> Callable[[], bool]:
        """Make a check that drives the sending as the worker's loop does."""

        def check() -> bool:
            self.sending.tend(clock.monotonic())
            self._answers += self.sending.answers()
            return len(self._answers) == count

        return check

    def effects(self) -> list[str]:
        """The ids of the rows in the order of their commits."""
        changes = [change for commit in self.database.history for change in commit.changes]
        return [
            after["id"] for name, _, before, after in changes if name == "ledger" and before is None and after
        ]


@pytest.fixture
def table(world: CallingWorld) -> Iterator[Table]:
    with installed(world):
        yield Table(world)


def test_a_batch_whose_connection_falls_silent_is_sent_again_when_its_time_is_over(
    world: CallingWorld, table: Table
) -> None:
    table.fall_silent()
    table.send(0, 1)
    world.sleep(0.1)
    table.speak_again()
    started = clock.monotonic()

    until(table.answered(1), "answer")

    assert clock.monotonic() - started < 3 * RESEND_S, "the timer, not the connection's own limit"
    assert table.effects() == ["m-0-0", "m-0-1"]


def test_what_lies_behind_a_batch_without_an_answer_waits_for_it(world: CallingWorld, table: Table) -> None:
    table.fall_silent()
    table.send(0, 1)
    table.send(2, 3)
    world.sleep(0.1)
    table.speak_again()
    table.cursor.abandon()

    until(table.answered(2), "answers")

    assert table.effects() == ["m-0-0", "m-0-1", "m-0-2", "m-0-3"]
