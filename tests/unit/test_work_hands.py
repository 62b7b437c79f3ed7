"""The threads that run handlers: as many run at once as there is work for, the oldest run is told, and their end is waited for so long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from relay.queue.message import Ticket
from relay.work.dispatch import Dispatch, Ended, Outcome, Work
from relay.work.hands import Hands, Run, UnderWay, all_ended
from relay.world import clock, schedule
from tests.unit.test_work_dispatch import message

WAIT_S = 10.0


class Site:
    """Some hands over a dispatch, all of them idle."""

    def __init__(self, concurrency: int, run: Run) -> None:
        self.concurrency = concurrency
        self.lock, self.wake = schedule.lock(), schedule.event()
        self.dispatch = Dispatch(concurrency, 5)
        self.hands = Hands(self.dispatch, concurrency, run, self.lock, self.wake)
        self.wait_until(lambda: self.hands._idle == concurrency)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        limit = clock.monotonic() + WAIT_S
        while not holds():
            assert clock.monotonic() < limit
            self.wake.wait(0.01)
            self.wake.clear()

    def give(self, count: int) -> None:
        with self.lock:
            self.dispatch.add([message(handle, lane=None) for handle in range(1, count + 1)])
            self.hands.feed()
            self.hands.feed()
            assert self.hands._tokens.qsize() <= self.concurrency, "a worker feeds its hands fifty times a second"


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_as_many_run_at_once_as_there_are_hands_and_each_is_woken_once() -> None:
    together = threading.Barrier(4, timeout=WAIT_S)

    def meets(work: Work) -> Sequence[Ended]:
        together.wait()
        return all_ended(work, Outcome.DONE)

    site = Site(4, meets)
    site.give(8)
    site.wait_until(lambda: not site.dispatch.in_hand and site.hands._idle == 4)

    assert len(site.dispatch.writes().done) == 8
    assert site.hands._tokens.empty()
    assert site.hands.close(WAIT_S)


def test_the_oldest_run_is_told_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = UnderWay()
    for number, begun in ((1, 20.0), (2, 10.0), (3, 15.0)):
        monkeypatch.setattr(clock, "monotonic", lambda begun=begun: begun)
        under_way.begin(number, Work((message(number),)))

    found = []
    for number in (1, 2, 3):
        found.append(under_way.longest(25.0))
        under_way.end(number)

    assert found == [(15.0, Ticket(2, 1)), (15.0, Ticket(2, 1)), (10.0, Ticket(3, 1))]
    assert under_way.longest(25.0) is None


def test_a_hand_that_does_not_end_is_waited_for_no_longer_than_asked(released: threading.Event) -> None:
    def hangs(work: Work) -> Sequence[Ended]:
        released.wait(WAIT_S)
        return all_ended(work, Outcome.DONE)

    site = Site(2, hangs)
    site.give(1)
    begun = clock.monotonic()

    assert not site.hands.close(0.1)
    assert clock.monotonic() - begun < WAIT_S / 2
    released.set()
    assert site.hands.close(WAIT_S)
