"""What a worker has to write is written, whatever keeps it from taking more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relay.message.errors import InDoubt
from relay.queue.message import Taken
from relay.queue.port import StoreAway
from relay.queue.states import SubscriberState
from relay.work.backoff import Backoff
from relay.work.dispatch import Dispatch, Ended, Failure, Outcome, Writes
from relay.work.states import Report, States
from relay.world import schedule
from tests.contracts.queue_book import QueueBook
from tests.contracts.queue_media import HOLDER, OTHER, Medium, enter, put, settings


def test_what_is_done_is_written_while_the_log_with_the_values_is_away(tmp_path: Path) -> None:
    medium = Medium("log", "log+sqlite:///queues.db", tmp_path)
    store = medium.open(settings("ann"))
    enter(store)
    first, second = put(store, "a", "b")
    report = Report()
    written = States(store, "ann", HOLDER, Backoff(), report)
    (taken,) = written.write_and_take(Writes(), 1, ())
    medium.log.away = True

    assert written.write_and_take(Writes(done=[taken.ticket]), 1, ()) == []

    assert not written.has_pending
    assert (taken.ticket.handle, report.done) == (first, 1)
    assert store.holds("ann", [taken.ticket]) == [SubscriberState.DONE]
    assert store.held(HOLDER) == []
    with pytest.raises(StoreAway):
        written.write_and_take(Writes(), 1, ())
    medium.log.away = False
    assert [one.ticket.handle for one in written.write_and_take(Writes(), 1, ())] == [second]
    medium.close()


class Unanswering(QueueBook):
    """A book whose next commit may have no answer, whether it came about or not; or it is away."""

    came_about: bool | None = None
    is_away = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        came_about, self.came_about = self.came_about, None
        with super().transaction():
            yield
            if self.is_away:
                raise StoreAway("the store does not answer")
            if came_about is False:
                raise InDoubt("the answer of the commit was lost")
        if came_about:
            raise InDoubt("the answer of the commit was lost")


class Desk:
    """One worker's states in a store, and what it has in hand."""

    def __init__(self, messages: int) -> None:
        self.store = Unanswering(settings("ann"))
        enter(self.store)
        put(self.store, *(str(number) for number in range(messages)))
        self.report = Report()
        self.done: list[int] = []
        self.states = States(
            self.store, "ann", HOLDER, Backoff(), self.report, lambda found: self.done.extend(one.handle for one in found)
        )
        self.dispatch = Dispatch(1, 5)

    def cycle(self, room: int, writes: Writes | None = None) -> list[Taken]:
        """What the loop does: resync, then one unit."""
        self.states.resync(self.dispatch, schedule.lock())
        taken = self.states.write_and_take(self.states.pending(writes or Writes()), room, ())
        self.dispatch.add(taken)
        return taken

    def held(self) -> list[int]:
        return [ticket.handle for ticket in self.store.held(HOLDER)]


def test_what_is_taken_has_begun() -> None:
    desk = Desk(1)
    (taken,) = desk.cycle(1)
    assert desk.store.holds("ann", [taken.ticket]) == [SubscriberState.IN_PROCESS]
    assert desk.report == Report(taken=1)


@pytest.mark.parametrize("came_about", [True, False])
def test_a_write_without_an_answer_is_written_once_more_and_counted_once(came_about: bool) -> None:
    desk = Desk(2)
    (first,) = desk.cycle(1)
    desk.store.came_about = came_about
    with pytest.raises(InDoubt):
        desk.cycle(0, Writes(done=[first.ticket]))
    assert desk.states.has_pending
    assert (desk.report.done, desk.done) == (0, []), "nobody knows yet"

    assert [one.ticket.handle for one in desk.cycle(1)] == [2]

    assert not desk.states.has_pending
    assert (desk.report.done, desk.report.overtaken, desk.report.returned) == (1, 0, 0)
    assert desk.done == [first.ticket.handle]
    assert desk.store.holds("ann", [first.ticket]) == [SubscriberState.DONE]


def test_what_came_with_a_lost_answer_is_given_back_and_what_runs_waits_or_is_written_is_not() -> None:
    desk = Desk(4)
    ended, running, waiting = desk.cycle(3)
    assert desk.dispatch.next() is not None
    desk.dispatch.ended([Ended(ended, Outcome.FAILED)])
    assert desk.dispatch.next() is not None
    desk.store.came_about = True
    with pytest.raises(InDoubt):
        desk.cycle(1, desk.dispatch.writes())
    assert desk.held() == [running.ticket.handle, waiting.ticket.handle, 4]

    desk.states.resync(desk.dispatch, schedule.lock())

    assert desk.held() == [running.ticket.handle, waiting.ticket.handle]
    assert desk.report.returned == 1, "the fourth, of which nobody here knew"
    assert not desk.dispatch.has(ended.ticket)


def test_a_take_whose_commit_comes_late_is_waited_for_or_nobody_would_know_of_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(1)
    desk.store.came_about = False
    with pytest.raises(InDoubt):
        desk.cycle(1)
    beat, landed = desk.store.beat, list[list[Taken]]()

    def late(holder: bytes) -> bool:
        """Who writes the holder's row waits for whoever takes for it."""
        landed.append(desk.store.take("ann", HOLDER, 1, 0))
        return beat(holder)

    monkeypatch.setattr(desk.store, "beat", late)
    desk.states.resync(desk.dispatch, schedule.lock())
    if not landed:
        late(HOLDER)

    assert landed[0]
    assert desk.held() == []


def test_what_is_still_to_be_written_is_not_given_back_as_if_nobody_knew_it() -> None:
    desk = Desk(1)
    (taken,) = desk.cycle(1)
    assert desk.dispatch.next() is not None
    desk.dispatch.ended([Ended(taken, Outcome.DONE)])
    desk.store.came_about = False
    with pytest.raises(InDoubt):
        desk.cycle(0, desk.dispatch.writes())

    desk.states.resync(desk.dispatch, schedule.lock())

    assert (desk.held(), desk.report.returned) == ([1], 0)
    desk.cycle(0)
    assert (desk.held(), desk.report.done, desk.report.returned) == ([], 1, 0)


def test_a_take_alone_that_had_no_answer_is_looked_after_before_the_worker_ends() -> None:
    desk = Desk(1)
    desk.store.came_about = True
    with pytest.raises(InDoubt):
        desk.cycle(1)
    assert desk.states.has_pending
    assert desk.cycle(0) == []
    assert (desk.held(), desk.states.has_pending) == ([], False)


def test_without_a_lost_answer_nothing_is_given_back() -> None:
    desk = Desk(1)
    desk.states.write_and_take(Writes(), 1, ())
    desk.states.resync(desk.dispatch, schedule.lock())
    assert (desk.held(), desk.report.returned) == ([1], 0)


def test_a_store_that_is_away_keeps_what_was_to_be_written_before_what_comes_later() -> None:
    desk = Desk(2)
    first, second = desk.cycle(2)
    desk.store.is_away = True
    with pytest.raises(StoreAway):
        desk.states.write_and_take(Writes(done=[first.ticket]), 0, ())
    assert desk.states.has_pending
    assert (desk.report.done, desk.done) == (0, [])
    desk.store.is_away = False

    desk.cycle(0, Writes(done=[second.ticket]))

    assert desk.done == [first.ticket.handle, second.ticket.handle]


def test_whatever_a_store_that_was_away_did_not_write_is_written_with_what_comes_later() -> None:
    desk = Desk(5)
    done, refused, back, failed, later = desk.cycle(5)
    desk.store.is_away = True
    early = Writes(
        unusable=[(refused.ticket, "why")], back=[back.ticket], failed=[Failure(failed.ticket, 1)], lanes={done.lane}
    )
    with pytest.raises(StoreAway):
        desk.states.write_and_take(early, 0, ())
    desk.store.is_away = False

    written = desk.states.pending(Writes(done=[done.ticket], lanes={b"later"}))
    desk.states.write_and_take(written, 0, ())

    assert desk.report == Report(taken=5, done=1, unusable=1, returned=1, failed=1)
    assert desk.held() == [later.ticket.handle]
    assert written.lanes == {done.lane, b"later"}


def test_what_waited_for_something_is_tried_later_and_counts_as_no_failure() -> None:
    desk = Desk(1)
    (away,) = desk.cycle(1)

    desk.cycle(0, Writes(failed=[Failure(away.ticket, 1, counted=False)]))

    (view,) = desk.store.views([away.ticket.handle])
    assert (view.subscribers[0].failures, view.subscribers[0].again_at is not None) == (0, True)
    assert desk.report.failed == 1


def test_what_another_worker_has_by_now_is_overtaken_and_not_done() -> None:
    desk = Desk(2)
    enter(desk.store, holder=OTHER)
    first, second = desk.cycle(2)
    desk.store.free("ann", [first.ticket], 1)
    (again,) = desk.store.take("ann", OTHER, 1, 1)

    desk.cycle(0, Writes(done=[first.ticket, second.ticket]))

    assert desk.report == Report(taken=2, done=1, overtaken=1)
    assert desk.done == [second.ticket.handle]
    assert desk.store.held(OTHER) == [again.ticket]


def test_states_are_written_and_counted_each_for_itself() -> None:
    desk = Desk(4)
    done, refused, back, failed = desk.cycle(4)

    desk.cycle(
        0,
        Writes(
            done=[done.ticket], unusable=[(refused.ticket, "why")], back=[back.ticket], failed=[Failure(failed.ticket, 1)]
        ),
    )

    assert desk.report == Report(taken=4, done=1, unusable=1, returned=1, failed=1)
    assert desk.held() == []
    ends = [view.subscribers[0] for view in desk.store.views([one.ticket.handle for one in (refused, back, failed)])]
    assert [(one.cause, one.failures, one.again_at is not None) for one in ends] == [
        ("why", 0, False), (None, 0, False), (None, 1, True),
    ]  # fmt: skip
