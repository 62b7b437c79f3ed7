"""The threads that run handlers: each takes what may run next under the dispatch's lock, and waits outside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from relay.queue.message import Ticket
from relay.work.dispatch import Dispatch, Ended, Outcome, Work
from relay.world import clock, schedule

Run = Callable[[Work], Sequence[Ended]]
"""Runs one `Work` to its end; it reports failures as outcomes and never raises for what a handler did."""

_STOP: Final = False
_GO: Final = True


class UnderWay:
    """What runs now, by a number of whoever runs it, and since when; the worker's thread looks at it meanwhile."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[float, Work]] = {}

    def begin(self, number: int, work: Work) -> None:
        """Note that a work begins."""
        self._begun[number] = (clock.monotonic(), work)

    def end(self, number: int) -> None:
        """Note that it has ended."""
        del self._begun[number]

    def longest(self, now: float) -> tuple[float, Ticket] | None:
        """Return for how many seconds the oldest run has lasted, and its first message; None if nothing runs."""
        begun = min(list(self._begun.values()), default=None, key=lambda one: one[0])
        return None if begun is None else (now - begun[0], begun[1].messages[0].ticket)


class Hands:
    """``concurrency`` threads over one dispatch. ``lock`` guards the dispatch; ``wake`` is set when a hand is empty."""

    def __init__(
        self, dispatch: Dispatch, concurrency: int, run: Run, lock: schedule.Lock, wake: schedule.Event
    ) -> None:
        self._dispatch = dispatch
        self._run = run
        self._lock = lock
        self._wake = wake
        self._tokens = schedule.fifo()
        self._idle = 0
        self._under_way = UnderWay()
        self.longest = self._under_way.longest
        self.broken: BaseException | None = None
        self._threads = [
            schedule.start_thread(f"handler-{number}", self._loop(number)) for number in range(concurrency)
        ]

    def feed(self) -> None:
        """Wake as many idle hands as there is work for; call it with the lock held."""
        for _ in range(min(self._idle, self._dispatch.ready)):
            self._idle -= 1
            self._tokens.put(_GO)

    def close(self, timeout_s: float) -> bool:
        """Let every thread end after what it runs now; False if one has not ended in time."""
        for _ in self._threads:
            self._tokens.put(_STOP)
        limit = clock.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, limit - clock.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _loop(self, number: int) -> Callable[[], None]:
        def _guarded() -> None:
            try:
                self._serve(number)
            except BaseException as error:  # noqa: BLE001 - the worker's thread raises it where it ends the process
                self.broken = error
                self._wake.set()

        return _guarded

    def _serve(self, number: int) -> None:
        ends: Sequence[Ended] = ()
        while True:
            with self._lock:
                if ends:
                    self._dispatch.ended(ends)
                work = self._dispatch.next()
                if work is None:
                    self._idle += 1
            if work is None:
                ends = ()
                self._wake.set()
                if self._tokens.get() is _STOP:
                    return
                continue
            self._under_way.begin(number, work)
            ends = self._run(work)
            self._under_way.end(number)


def all_ended(work: Work, outcome: Outcome, cause: str = "", after_s: float = 0.0) -> list[Ended]:
    """Return the same end for every message of a work."""
    return [Ended(one, outcome, cause, after_s) for one in work.messages]
