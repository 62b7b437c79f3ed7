"""How often a worker's loop asks its queue, how much it takes, and that nothing makes it wait without an end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.message.errors import InDoubt
from relay.queue.message import NewMessage, Ticket
from relay.queue.port import Holder, StoreAway
from relay.queue.states import SubscriberState
from relay.work import dispatch
from relay.work import worker as loop
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.hands import all_ended
from relay.work.worker import LOOK_S, HandlerHung, Limits, Worker
from relay.world import clock
from tests.unit.test_work_turns import HOLDER, IDLE_S, Site, succeeds

WAIT_S = 10.0
OTHER = Holder(b"another worker--", "ann", 0, None)


class Clock:
    """Time that passes only while the worker waits for an alert; ``pauses`` are those waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)

    def wait(self, pause: float) -> bool:
        self.pauses.append(pause)
        self.now += pause
        return False


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def spied(worker: Worker, name: str, seen: Callable[..., object]) -> None:
    """Call ``seen`` with what the worker's store was asked, and what it answered."""
    asked = getattr(worker._store, name)

    def answer(*given: Any, **over: Any) -> Any:
        found = asked(*given, **over)
        seen(found, *given, **over)
        return found

    setattr(worker._store, name, answer)


# When it asks -----------------------------------------------------------------------------------------------------


def test_an_empty_queue_is_asked_less_and_less_often_but_never_seldom_and_a_worker_is_idle_from_its_start_on(
    tmp_path: Path, passing: Clock
) -> None:
    Site(tmp_path, 0).worker(succeeds, alert=passing.wait).run(until_idle_s=3.0)

    assert passing.pauses[:3] == pytest.approx([2 * LOOK_S[0], 4 * LOOK_S[0], 8 * LOOK_S[0]])
    assert max(passing.pauses) == pytest.approx(LOOK_S[1])
    assert sum(passing.pauses) == pytest.approx(3.0, abs=LOOK_S[1])


def test_it_waits_for_no_alert_while_its_queue_gives_messages_and_is_idle_from_the_last_one_on(
    tmp_path: Path, passing: Clock
) -> None:
    site = Site(tmp_path, 7)
    left: list[int] = []

    def waits(pause: float) -> bool:
        left.append(site.store.counts()[1][0].counts.get(SubscriberState.AVAILABLE, 0))
        if len(left) == 5:
            site.store.put([NewMessage("p", "late", b"v")], 1)
        return passing.wait(pause)

    report = site.worker(succeeds, alert=waits).run(until_idle_s=1.0)

    assert report.done == 8
    assert not any(left)
    assert sum(passing.pauses[5:]) >= 1.0 - LOOK_S[1]


def test_an_alert_lets_it_ask_at_once_and_then_as_often_as_at_first(tmp_path: Path, passing: Clock) -> None:
    site = Site(tmp_path, 0)
    ran: list[tuple[float, int]] = []

    def alerts(pause: float) -> bool:
        if len(passing.pauses) == 10 and not ran:
            site.store.put([NewMessage("p", "1", b"v")], 1)
            ran.append((passing.now, len(passing.pauses)))
            return True
        return passing.wait(pause)

    def notes(work: Work) -> Sequence[Ended]:
        ran.append((passing.now, len(passing.pauses)))
        return succeeds(work)

    site.worker(notes, alert=alerts).run(until_idle_s=5.0)

    assert ran == [(ran[0][0], 10)] * 2, "no time has passed"
    assert passing.pauses[10] < 3 * LOOK_S[0]


def test_it_is_not_idle_while_another_worker_has_messages_that_may_come_back(tmp_path: Path, passing: Clock) -> None:
    site = Site(tmp_path, 1)
    site.store.enter(OTHER)
    (taken,) = site.store.take("ann", OTHER.id, 1, 5)

    def waits(pause: float) -> bool:
        if passing.now > 1010.0:
            site.store.free("ann", [taken.ticket], 6)
        return passing.wait(pause)

    assert site.worker(succeeds, alert=waits).run(until_idle_s=1.0).done == 1


def test_it_does_not_take_itself_for_idle_while_nobody_can_tell(tmp_path: Path, passing: Clock) -> None:
    site = Site(tmp_path, 0)
    counts, failures = site.store.counts, [StoreAway("the database is away")] * 3

    def away() -> Any:
        if failures:
            raise failures.pop()
        return counts()

    site.store.counts = away  # type: ignore[method-assign]

    site.worker(succeeds, alert=passing.wait).run(until_idle_s=1.0)

    assert not failures


def test_while_a_handler_runs_it_waits_between_its_looks_and_asks_an_empty_queue_no_more_often(
    tmp_path: Path, passing: Clock
) -> None:
    site = Site(tmp_path, 1)
    enough = threading.Event()
    takes: list[int] = []
    asked: list[int] = []

    def waits(work: Work) -> Sequence[Ended]:
        assert enough.wait(WAIT_S)
        asked.extend(takes)
        return succeeds(work)

    worker = site.worker(waits, Limits(concurrency=2), alert=passing.wait)
    spied(worker, "take", lambda taken, *_, **__: takes.append(len(taken)))
    wait = worker._wake.wait
    pauses: list[float] = []

    def notes(pause: float) -> bool:
        if wait(pause):
            return True
        pauses.append(pause)
        if len(pauses) == 4:
            enough.set()
        return False

    worker._wake.wait = notes  # type: ignore[method-assign,assignment]

    assert worker.run(IDLE_S).done == 1
    assert max(pauses) <= LOOK_S[1], "it beats, and writes what ends, meanwhile"
    assert asked == [1, 0], "no time has passed since"


# How much it takes ------------------------------------------------------------------------------------------------


def test_it_holds_no_more_than_its_window_and_takes_again_before_that_is_empty(tmp_path: Path) -> None:
    site = Site(tmp_path, 20)
    again = threading.Event()
    takes: list[int] = []
    held: list[int] = []
    ended: list[int] = []

    def some_wait(work: Work) -> Sequence[Ended]:
        if work.messages[0].ticket.handle in (1, 2):
            assert again.wait(WAIT_S)
        return succeeds(work)

    def notes(taken: Sequence[object], *_: object, **__: object) -> None:
        held.append(len(site.store.held(HOLDER.id)))
        takes.extend([len(taken)] * bool(taken))
        if len(takes) > 1:
            again.set()

    worker = site.worker(some_wait, Limits(concurrency=4))
    worker._window = SimpleNamespace(size=8, note=lambda count, _: ended.append(count))  # type: ignore[assignment]
    spied(worker, "take", notes)

    assert worker.run(IDLE_S).done == 20
    assert max(held) == 8
    assert again.is_set()
    assert sum(ended) == 20, "each counts once for how fast they end"


def test_it_takes_nothing_of_a_lane_of_which_enough_waits_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LANE_WAITING_MAX", 3)
    site = Site(tmp_path, 0)
    site.store.put([NewMessage("p", str(n), b"v", lane=b"long") for n in range(5)], 1)
    asked = threading.Event()

    def waits(work: Work) -> Sequence[Ended]:
        assert asked.wait(WAIT_S)
        return succeeds(work)

    def notes(_: object, *__: object, without: Sequence[bytes] = (), **___: object) -> None:
        if b"long" in without:
            asked.set()

    worker = site.worker(waits, Limits(batch=10))
    spied(worker, "take", notes)

    assert worker.run(IDLE_S).done == 5
    assert asked.is_set()


def test_what_went_back_and_comes_with_the_same_take_runs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent back once more it would come as another attempt, for nothing."""
    monkeypatch.setattr(loop, "LOOK_S", (0.0, 0.0))
    site = Site(tmp_path, 1)
    ran: list[Ticket] = []

    def back_first(work: Work) -> Sequence[Ended]:
        ran.append(work.messages[0].ticket)
        return all_ended(work, Outcome.DONE if len(ran) > 1 else Outcome.BACK)

    assert site.worker(back_first).run(IDLE_S).done == 1
    assert [ticket.attempt for ticket in ran] == [1, 2]


# What has an end --------------------------------------------------------------------------------------------------


def test_it_goes_on_to_beat_however_long_a_handler_runs(tmp_path: Path) -> None:
    site = Site(tmp_path, 1)
    beaten = threading.Event()

    def waits(work: Work) -> Sequence[Ended]:
        beaten.clear()
        assert beaten.wait(WAIT_S)
        return succeeds(work)

    worker = site.worker(waits)
    worker._upkeep._beat_s = 0.0
    spied(worker, "beat", lambda *_: beaten.set())

    assert worker.run(IDLE_S).done == 1


def test_a_handler_that_hangs_with_the_stores_lock_in_its_hand_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "TURN_S", 0.01)
    monkeypatch.setattr(loop, "AWAY_S", 0.01)
    site = Site(tmp_path, 2)
    released = threading.Event()

    def hangs(work: Work) -> Sequence[Ended]:
        with worker._lock:
            released.wait(WAIT_S)
        return succeeds(work)

    worker = site.worker(hangs, Limits(deadline_s=0.2))
    with pytest.raises(HandlerHung, match=r"did not end within 0\.2 s"):
        worker.run(IDLE_S)
    released.set()

    assert site.done == []


def test_what_a_handlers_thread_cannot_decide_ends_the_worker(tmp_path: Path) -> None:
    def nobody_knows(_: Work) -> Sequence[Ended]:
        worker.stop()
        raise InDoubt("nobody answers what became of it")

    site = Site(tmp_path, 2)
    worker = site.worker(nobody_knows, Limits(drain_s=5.0))
    with pytest.raises(InDoubt, match="nobody answers"):
        worker.run(IDLE_S)

    assert site.left, "recovery finds what it holds"


def test_a_hand_that_has_ended_its_work_does_not_count_as_one_that_hangs(tmp_path: Path, passing: Clock) -> None:
    site = Site(tmp_path, 1)

    def later(pause: float) -> bool:
        if len(passing.pauses) == 3:
            passing.now += 100.0
            site.store.put([NewMessage("p", "late", b"v")], 1)
        return passing.wait(pause)

    assert site.worker(succeeds, Limits(concurrency=2, deadline_s=10.0), alert=later).run(until_idle_s=1.0).done == 2


@pytest.mark.parametrize("failure", [InDoubt("the answer was lost"), StoreAway("the database is away"), None])
def test_a_worker_that_may_not_leave_or_cannot_say_so_ends_all_the_same_and_keeps_its_mark(
    failure: Exception | None, tmp_path: Path
) -> None:
    site = Site(tmp_path, 1)

    def fails(_: bytes) -> bool:
        if failure is not None:
            raise failure
        return False

    site.store.leave = fails  # type: ignore[method-assign]

    assert site.worker(succeeds).run(IDLE_S).done == 1
    assert [path.name for path in tmp_path.iterdir()] == [HOLDER.id.hex()], "by it others see that it is dead"


def test_told_to_end_it_writes_first_what_the_store_did_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "AWAY_S", 0.01)
    site = Site(tmp_path, 1)
    worker: Worker
    failures = [StoreAway("the database is away")] * 3

    def ends(work: Work) -> Sequence[Ended]:
        worker.stop()
        return succeeds(work)

    worker = site.worker(ends)
    write_and_take = worker._states.write_and_take

    def away(writes: Any, *given: Any) -> Any:
        if writes and failures:
            raise failures.pop()
        return write_and_take(writes, *given)

    monkeypatch.setattr(worker._states, "write_and_take", away)

    assert worker.run().done == 1
    assert (failures, site.left) == ([], 0)


def test_it_says_how_many_messages_of_dead_workers_it_has_recovered(tmp_path: Path) -> None:
    site = Site(tmp_path, 3)
    site.store.enter(OTHER)
    site.store.take("ann", OTHER.id, 2, 5)
    (tmp_path / OTHER.id.hex()).touch()

    report = site.worker(succeeds).run(IDLE_S)

    assert (report.recovered, report.done) == (2, 3)
