"""What a worker says of itself: a quiet hour is no stall, and what the group took away is nobody's any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.control.status import State, judge_worker
from relay.delivery.batch import Counts
from relay.log.holds import HoldBudget
from relay.log.intake import Intake
from relay.message.identity import rules
from relay.message.record import LogPartition
from relay.run.appetite import Bounds
from relay.run.progress import PERIOD_S, Progress
from relay.run.status_record import StatusRecord
from relay.run.unread import Unread
from relay.run.worker import RouteWorker
from relay.world import clock
from relay.world.seldom import KINDS_MAX, OTHERS, Seldom
from tests.unit.test_holds import message
from tests.unit.test_intake import Fake

PLACE = LogPartition("orders", 0)
HOUR_S = 3600.0
IDENTITY = {"relay": "shop", "route": "r", "worker": "shop.r.a.0"}


class Said:
    """A progress whose records are kept, with a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unread: Unread | None = None) -> None:
        self.now = 1000.0
        self.step_s = 0.0
        """By how much somebody has set the wall clock since."""
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr(clock, "wall_ms", lambda: round((self.now + self.step_s) * 1000))
        self.records: list[StatusRecord] = []
        self.progress = Progress(
            IDENTITY, lambda record, _: self.records.append(StatusRecord.model_validate(record)), unread=unread
        )
        self.intake = Intake(
            rules(["position"]), "publisher", budget=HoldBudget(1000), marker_wait_s=3.0, askable=frozenset()
        )
        self.destination: Any = SimpleNamespace(counts=Counts(), in_doubt={})

    def beat(self, **running: int) -> StatusRecord:
        at = {PLACE: running["at"]} if running else {}
        self.progress.beat(self.now, self.intake, self.destination, at)
        return self.records[-1]

    def judged(self) -> State:
        return judge_worker(self.records[-1], round((self.now + self.step_s) * 1000))[0]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    return Said(monkeypatch)


def test_the_last_error_is_told_with_its_time(said: Said) -> None:
    assert said.beat(at=1).last_error_at is None
    said.progress.failed("the database does not answer")
    at, said.now = round(said.now * 1000), said.now + HOUR_S
    said.progress.took_over(said.now)

    assert (said.beat(at=1).last_error, said.records[-1].last_error_at) == ("the database does not answer", at)


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
@pytest.mark.parametrize("has_moved", [True, False])
def test_a_wall_clock_that_is_set_neither_hides_a_stall_nor_makes_one(said: Said, step_s: float, *, has_moved: bool) -> None:
    said.intake.start({PLACE: 7}, {"orders": b"i" * 16})
    said.progress.took_over(said.now)
    running = {"at": 7} if has_moved else {}
    said.beat(**running)
    said.intake.take([Fake(7)], said.now)
    said.step_s = step_s
    states = []
    for _ in range(20):
        said.now += PERIOD_S
        said.beat(**running)
        states.append(said.judged())

    assert states == [State.RUNNING] * 14 + [State.STALLED] * 6
    assert len({one.started_at for one in said.records}) == 2, "it is told anew when the clock was set, and only then"


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_wall_clock_that_is_set_does_not_change_for_how_long_a_worker_cannot_take_over(said: Said, step_s: float) -> None:
    said.beat(at=1)
    said.progress.failed("the database does not answer")
    said.step_s = step_s
    judged = []
    for _ in range(20):
        said.now += PERIOD_S
        said.progress.state("recovering")
        judged.append(said.judged())

    assert judged == [State.RECOVERING] * 14 + [State.STALLED] * 6


def test_who_drains_has_no_error_left_that_would_seem_to_be_why_it_stopped(said: Said) -> None:
    said.progress.failed("the database does not answer")
    assert said.beat(at=1).last_error is not None

    said.progress.state("draining")
    said.progress.state("stopped")

    assert [(one.state, one.last_error) for one in said.records[-2:]] == [("draining", None), ("stopped", None)]


def test_the_first_message_after_a_quiet_hour_is_no_stall(said: Said) -> None:
    said.intake.start({PLACE: 7}, {"orders": b"i" * 16})
    said.progress.took_over(said.now)
    said.beat(at=7)
    said.progress.caught_up(PLACE, 7)
    for _ in range(round(HOUR_S / PERIOD_S)):
        said.now += PERIOD_S
        said.beat(at=7)
    said.intake.take([Fake(7)], said.now)  # read, and not delivered yet
    said.now += PERIOD_S

    (place,) = said.beat(at=7).partitions

    assert place.lag == 1
    assert said.judged() is State.RUNNING
    said.now += 31
    said.beat(at=7)
    assert said.judged() is State.STALLED


def test_a_worker_without_an_assignment_owns_nothing_and_does_not_run(said: Said) -> None:
    group: Any = SimpleNamespace(name="g", generation=1, assigned=[PLACE], fatal=None, consume=lambda *_: [], stay=bool)
    parts: Any = SimpleNamespace(
        start=lambda *_: None, take=lambda *_: [], recover=lambda *_: {PLACE: 7}, abandon=lambda: None, wait=bool
    )
    group.start = parts.start
    made = RouteWorker(
        group=group, intake=said.intake, destination=parts, views=parts, resolving=parts, reloading=parts,
        redriving=parts, progress=said.progress, starts=parts.recover, check_twin=bool,
        topic_ids=lambda: {"orders": b"i" * 16}, check_topics=bool, check_epochs=bool, bounds=Bounds(10, 1000, 0.1, 100),
    )  # fmt: skip
    parts.read_at_once, parts.asked_again_s = 10, 30.0
    made._read(0.0)
    assert said.beat(at=7).state == "running"

    group.generation, group.assigned = 2, None  # revoked: another one may have it already
    made.revoked()
    made._read(0.0)
    said.now += PERIOD_S
    record = said.beat()

    assert (record.state, record.partitions) == ("recovering", ())
    assert said.judged() is State.RECOVERING


def test_what_its_database_does_not_answer_is_not_shown_as_delivered(said: Said) -> None:
    answered: dict[LogPartition, int] = {}
    parts: Any = SimpleNamespace(
        counts=Counts(), in_doubt={}, narrowed_to=None, read_at_once=10, asked_again_s=30.0, settled=lambda: True, submit=lambda _: None,
        positions=lambda: answered, start=lambda *_: None, take=lambda *_: [], recover=lambda *_: {PLACE: 7},
        abandon=bool, listen=bool, turn=lambda *_: None, tend=lambda _: None, is_due=lambda _: False, commit=lambda *_, **__: None,
    )  # fmt: skip
    reading = iter([[], [Fake(7)]])
    group: Any = SimpleNamespace(
        name="g", generation=1, assigned=[PLACE], fatal=None, consume=lambda *_: next(reading, []), start=parts.start,
        membership=bytes, commit=parts.commit, stay=bool,
    )  # fmt: skip
    made = RouteWorker(
        group=group, intake=said.intake, destination=parts, views=parts, resolving=parts, reloading=parts,
        redriving=parts, progress=said.progress, starts=parts.recover, check_twin=bool,
        topic_ids=lambda: {"orders": b"i" * 16}, check_topics=bool, check_epochs=bool, bounds=Bounds(10, 1000, 0.1, 100),
    )  # fmt: skip
    for _ in range(20):
        made._turn()
        said.now += PERIOD_S

    (place,) = said.records[-1].partitions
    assert (place.position, place.lag) == (7, 1)
    assert said.judged() is State.STALLED
    answered[PLACE] = 8
    made._turn()
    said.now += PERIOD_S
    made._turn()
    assert said.records[-1].partitions[0].lag == 0
    assert said.judged() is State.IDLE


def test_what_is_delivered_above_a_message_that_waits_is_not_in_doubt(said: Said) -> None:
    said.intake.start({PLACE: 7}, {"orders": b"i" * 16})
    held = said.intake.partitions[PLACE]
    said.destination.in_doubt = {PLACE: 10}  # a former worker has begun all of it
    assert said.beat(at=7).partitions[0].in_doubt == 3
    held.take(message(7, b"/waits", b"c" * 16), None, said.now)
    for offset in (8, 9):
        held.take(message(offset), None, said.now)
    held.take_ready(10)

    said.now += PERIOD_S
    (place,) = said.beat(at=7).partitions

    assert (place.position, place.held, place.in_doubt) == (7, 1, 0)


def test_a_worker_that_cannot_take_over_does_not_recover_for_ever(said: Said) -> None:
    said.beat(at=7)
    for _ in range(20):  # a database that is away: each try fails
        said.progress.failed("the database does not answer")
        said.progress.state("recovering")
        said.now += PERIOD_S

    said.progress.state("recovering")
    assert said.judged() is State.STALLED
    assert judge_worker(said.records[-1], round(said.now * 1000))[1] == (
        "it cannot take over, for 40 s: the database does not answer"
    )
    said.progress.took_over(said.now)
    said.progress.state("recovering")  # a rebalance
    assert said.judged() is State.RECOVERING


def test_dead_letters_are_said_at_once_then_now_and_then_and_all_by_the_end(said: Said) -> None:
    counts = said.destination.counts
    with capture_logs() as logs:
        counts.causes["23514"] = 2
        said.beat()
        for _ in range(5):
            said.now += PERIOD_S
            counts.causes["23514"] += 1
            counts.causes["not-decodable"] = 1
            said.beat()
        said.progress.state("stopped")

    told = [line["causes"] for line in logs if line["event"] == "dead letters"]
    assert told == [{"23514": 2}, {"23514": 5, "not-decodable": 1}]


def test_what_has_countless_kinds_is_counted_together() -> None:
    seldom = Seldom(every_s=30)
    for n in range(3 * KINDS_MAX):
        seldom.count(f"kind {n}")

    told = seldom.due(0)
    assert len(told) == KINDS_MAX + 1
    assert (told[OTHERS], sum(told.values())) == (2 * KINDS_MAX, 3 * KINDS_MAX)
    assert seldom.due(100) == {}
