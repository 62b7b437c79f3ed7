"""The loop of one worker over a store in memory: what it counts, what it gives back, and what ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from relay.message.errors import InDoubt
from relay.queue.message import NewMessage, Ticket
from relay.queue.port import Holder, Retired, StoreAway
from relay.queue.states import SubscriberState
from relay.work import worker as loop
from relay.work.backoff import Backoff
from relay.work.coroutines import AwaitedRunner
from relay.work.dispatch import UNEXPLAINED_MAX, Dispatch, Ended, Outcome, Work
from relay.work.hands import all_ended
from relay.work.mark import Mark, dead_mark
from relay.work.upkeep import Upkeep
from relay.work.worker import HandlerHung, Limits, Worker
from relay.world import schedule
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import settings

HOLDER = Holder(b"a worker--------", "ann", 0, None)
IDLE_S = 0.1


class Site:
    """A queue in memory with a number of messages, each in a lane of its own, and the worker of its subscriber."""

    def __init__(self, folder: Path, messages: int) -> None:
        self.folder = folder
        self.store = QueueBook(settings("ann"))
        self.store.enter(HOLDER)
        self.store.put([NewMessage(f"p{n}", "1", b"v") for n in range(messages)], 1)
        self.done: list[Ticket] = []

    def worker(self, run: Callable[[Work], Sequence[Ended]], limits: Limits | None = None, **more: Any) -> Worker:
        upkeep = Upkeep("q", {"q": self.store}, lambda _: {}, HOLDER, self.folder, 60.0, Backoff())
        return Worker(
            self.store, "ann", HOLDER.id, run, schedule.lock(), limits or Limits(), upkeep, Mark(self.folder, HOLDER.id),
            done=self.done.extend, **more,
        )  # fmt: skip

    @property
    def left(self) -> int:
        return sum(1 for holder in self.store.holders() if holder.id == HOLDER.id)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def succeeds(work: Work) -> Sequence[Ended]:
    return all_ended(work, Outcome.DONE)


def test_what_it_has_done_is_counted_once_and_told_and_it_leaves_its_queue(tmp_path: Path) -> None:
    site = Site(tmp_path, 7)

    report = site.worker(succeeds, Limits(concurrency=3)).run(IDLE_S)

    assert (report.done, len(site.done), len(set(site.done))) == (7, 7, 7)
    assert not site.left
    assert not list(tmp_path.iterdir()), "its mark is gone: nobody takes it for dead"


@pytest.mark.parametrize("deadline_s", [60.0, 0.0])
def test_what_is_said_seldom_may_be_said_while_it_works_and_all_of_it_at_its_end(deadline_s: float, tmp_path: Path) -> None:
    """Also where a handler hangs, which ends the process."""
    told: list[float] = []

    def slow(work: Work) -> Sequence[Ended]:
        time.sleep(3 * IDLE_S)
        return all_ended(work, Outcome.DONE)

    worker = Site(tmp_path, 1).worker(slow, Limits(deadline_s=deadline_s), say=told.append)
    with nullcontext() if deadline_s else pytest.raises(HandlerHung):
        worker.run(IDLE_S)

    assert told[0] < told[1] < told[-1] == float("inf")
    assert told == sorted(told)


def test_it_is_not_idle_while_a_failed_message_waits_to_be_tried_again(tmp_path: Path) -> None:
    site = Site(tmp_path, 1)
    tries = 0

    def fails_once(work: Work) -> Sequence[Ended]:
        nonlocal tries
        tries += 1
        return all_ended(work, Outcome.FAILED if tries == 1 else Outcome.DONE, "why")

    report = site.worker(fails_once, Limits(backoff=Backoff(4 * IDLE_S))).run(IDLE_S)

    assert (tries, report.done) == (2, 1)


def test_told_to_end_it_finishes_what_runs_and_gives_back_the_rest(tmp_path: Path) -> None:
    site = Site(tmp_path, 5)
    worker: Worker

    def told_to_end(work: Work) -> Sequence[Ended]:
        worker.stop()
        time.sleep(0.1)
        return all_ended(work, Outcome.DONE)

    worker = site.worker(told_to_end)
    done = worker.run().done

    assert 1 <= done <= 2, "another one may begin before the loop knows"
    assert not site.store.held(HOLDER.id)
    assert not site.left
    assert site.store.counts()[1][0].counts[SubscriberState.AVAILABLE] == 5 - done


def test_what_ends_just_as_the_worker_looks_whether_anything_is_left_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand counts a message down before it notes what is to be written of it."""
    site = Site(tmp_path, 1)
    note = Dispatch._note

    def slowly(*given: Any) -> None:
        time.sleep(0.2)
        note(*given)

    def told_to_end(work: Work) -> Sequence[Ended]:
        worker.stop()
        time.sleep(0.1)
        return all_ended(work, Outcome.DONE)

    monkeypatch.setattr(Dispatch, "_note", slowly)
    worker = site.worker(told_to_end)
    report = worker.run()

    assert (report.done, site.store.held(HOLDER.id), site.left) == (1, [], 0)


def test_a_handler_that_hangs_ends_the_process_which_holds_that_message_alone_and_is_blamed_on_it(
    tmp_path: Path, released: threading.Event
) -> None:
    site = Site(tmp_path, 4)

    def hangs(work: Work) -> Sequence[Ended]:
        released.wait(10)
        return all_ended(work, Outcome.DONE)

    worker = site.worker(hangs, Limits(deadline_s=0.2))
    with pytest.raises(HandlerHung, match=r"did not end within 0\.2 s"):
        worker.run()

    (hung,) = site.store.held(HOLDER.id)
    assert site.left, "recovery finds what it holds"
    (path,) = tmp_path.iterdir()
    assert path.read_text() == f"{hung.handle} {hung.attempt}"


def test_what_does_not_end_in_time_when_it_is_told_to_ends_the_process(tmp_path: Path, released: threading.Event) -> None:
    site = Site(tmp_path, 2)

    def goes_on(work: Work) -> Sequence[Ended]:
        worker.stop()
        released.wait(10)
        return all_ended(work, Outcome.DONE)

    worker = site.worker(goes_on, Limits(drain_s=0.2))
    with pytest.raises(HandlerHung, match=r"0\.2 s after the worker was told to end"):
        worker.run()

    assert len(site.store.held(HOLDER.id)) == 1, "the other one is given back"


@pytest.mark.parametrize("failure", [InDoubt("the answer was lost"), StoreAway("the database is away")])
def test_a_store_that_fails_for_a_while_ends_nothing(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "AWAY_S", 0.01)
    site = Site(tmp_path, 3)
    worker = site.worker(succeeds)
    write_and_take, failures = worker._states.write_and_take, [failure] * 3

    def fails_first(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return write_and_take(*given)

    monkeypatch.setattr(worker._states, "write_and_take", fails_first)

    assert worker.run(IDLE_S).done == 3
    assert not failures


def test_a_queue_that_goes_on_elsewhere_ends_the_process(tmp_path: Path) -> None:
    site = Site(tmp_path, 1)
    site.store.retire()

    with pytest.raises(Retired):
        site.worker(succeeds).run(IDLE_S)


class Awaited(AwaitedRunner):
    """Runs works on the event loop, as what it is given says."""

    def __init__(self, run: Callable[[Work], Sequence[Ended]]) -> None:
        self._given = run
        self.handlers_close = None

    async def __call__(self, work: Work) -> Sequence[Ended]:
        return self._given(work)


@pytest.mark.parametrize("made", [lambda run: run, Awaited], ids=["thread", "event loop"])
def test_a_suspect_runs_by_itself_and_is_named_as_long_as_it_runs(made: Callable[[Any], Any], tmp_path: Path) -> None:
    site = Site(tmp_path, 2)
    dead = Holder(b"a dead worker---", "ann", 0, None)
    site.store.enter(dead)
    for _ in range(UNEXPLAINED_MAX):  # it was given back by recovery
        (taken,) = site.store.take("ann", dead.id, 1, 5)
        site.store.start("ann", [taken.ticket], 5)
        site.store.free("ann", [taken.ticket], 5)
    named: list[str] = []

    def looks(work: Work) -> Sequence[Ended]:
        named.extend(path.read_text() for path in tmp_path.iterdir())
        return all_ended(work, Outcome.DONE)

    worker = site.worker(made(looks))
    assert worker.run(IDLE_S).done == 2

    assert named == [f"{site.done[0].handle} {site.done[0].attempt}", ""]
    assert dead_mark(tmp_path, HOLDER.id) is None
