"""The loop of one worker: write what came of messages and take the next ones in one transaction, hand them out, look after both.

The lock on the store is held while states are written, never while a handler runs or waits for anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from relay.message.errors import InDoubt, RelayError, Retriable
from relay.queue.message import Taken, Ticket
from relay.queue.port import QueueStore, Retired, StoreAway
from relay.queue.states import TAKEN, SubscriberState
from relay.work.backoff import Backoff
from relay.work.coroutines import AwaitedRunner, Coroutines
from relay.work.dispatch import Dispatch, Ended, Work
from relay.work.hands import Hands, Run
from relay.work.mark import Mark
from relay.work.states import Report, States
from relay.work.upkeep import Upkeep
from relay.work.window import Window
from relay.world import clock, schedule
from relay.world.crash import crash_point
from relay.world.seldom import AT_THE_END

CYCLE_S: Final = 0.02
"""While messages run, states are written this often: so long a message that ended may wait for its DONE."""
LOOK_S: Final = (0.01, 0.25)
"""An empty queue is asked again after the first, doubling up to the second, unless an alert comes earlier."""
AWAY_S: Final = 0.5
TURN_S: Final = 2.0
_HELD_BACK: Final = "takes nothing while the queue or the subscriber is paused, or the queue moves; `relay queue show` says who wants that"
"""So long the loop waits for a store's lock, which a handler that hangs inside its SQLite transaction may hold for ever."""


class HandlerHung(RelayError):
    """A handler did not end within its deadline: only the end of the process ends it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How one worker works. ``deadline_s`` is for one run of a handler; ``drain_s`` for what runs when it is to end."""

    concurrency: int = 1
    batch: int = 0
    ordered: bool = True
    deadline_s: float = 300.0
    drain_s: float = 30.0
    backoff: Backoff = Backoff()  # noqa: RUF009 - frozen


class Worker:
    """One holder of one subscriber's messages. ``lock`` is the one of ``store``; ``held_back`` tells whether to take nothing.

    ``alert`` waits up to so many seconds for a new message, and returns early if one may be there; ``done`` is told what has
    become DONE, durably. ``say`` is given the time now and then, and ``AT_THE_END`` at last: it says what is said seldom.
    """

    def __init__(
        self,
        store: QueueStore,
        subscriber: str,
        holder: bytes,
        run: Run | AwaitedRunner,
        lock: schedule.Lock,
        limits: Limits,
        upkeep: Upkeep,
        mark: Mark,
        *,
        held_back: Callable[[], bool] = lambda: False,
        alert: Callable[[float], object] | None = None,
        done: Callable[[Sequence[Ticket]], None] = lambda _: None,
        say: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._subscriber = subscriber
        self._limits = limits
        self._upkeep = upkeep
        self._mark = mark
        self._held_back = held_back
        self._was_held_back = False
        self._lock = lock
        self._say = say
        self._holder = holder
        self.report = Report()
        self._wake = schedule.event()
        self._alert = alert if alert is not None else self._wake.wait
        self._dispatching = schedule.lock()
        batch = max(limits.batch, 1)
        self._dispatch = Dispatch(
            limits.concurrency, store.settings.tries, batch=batch, ordered=limits.ordered
        )
        self._window = Window(limits.concurrency, batch)
        self._states = States(store, subscriber, holder, limits.backoff, self.report, done)
        self._run = run
        self._hands: Hands | Coroutines | None = None
        self._stopping = False
        self._look_at = 0.0
        self._pause_s = LOOK_S[0]
        self._moved_at = 0.0
        self._counted = (0, 0.0)
        self._log: Any = structlog.get_logger("relay.work")

    def stop(self) -> None:
        """Let what runs end, give back the rest, and leave; safe in a signal's handler.

        The loop sees it within ``LOOK_S``. Nothing is woken: the handler may have interrupted the loop while that holds
        the event's own lock, and would wait for it for ever.
        """
        self._stopping = True

    def run(self, until_idle_s: float | None = None) -> Report:
        """Work until stopped, or until nothing moved for so long and nothing waits for this subscriber.

        Raises HandlerHung, HolderForgotten and whatever a handler's thread could not decide: the process must end then.
        """
        self._hands = self._make_hands()
        self._moved_at = clock.monotonic()
        self._counted = (0, self._moved_at)
        try:
            while not self._stopping:
                self._once()
                if until_idle_s is not None and self._is_idle(until_idle_s):
                    break
                self._wait()
            self._drain()
        finally:
            self._say(AT_THE_END)
        self.report.done += self._dispatch.written_count
        return self.report

    def _once(self) -> None:
        now = clock.monotonic()
        self._say(now)
        self._check(now)
        try:
            with self._turn():
                self._upkeep.once(now)
                self._states.resync(self._dispatch, self._dispatching)
            self._cycle(now, self._room(now))
        except Retired:
            # The queue goes on elsewhere: the next process opens it there, and recovers what this one holds.
            raise
        except InDoubt:
            # In doubt: the next cycle writes once more, which tells.
            self._log.warning("an answer of the queue's store was lost; its states are written again")
            clock.sleep(AWAY_S)
        except Retriable as away:
            # Retry: nothing changed.
            self._upkeep.away(away)
            clock.sleep(AWAY_S)
        self.report.recovered = self._upkeep.recovered

    def _cycle(self, now: float, room: int) -> None:
        """Write and take in one transaction, then hand out."""
        with self._dispatching:
            writes = self._states.pending(self._dispatch.writes())
            without = self._dispatch.full_lanes() if room > 0 else ()
        taken: list[Taken] = []
        if writes or room > 0:
            with self._turn():
                taken = self._states.write_and_take(writes, room, without)
            crash_point("work.taken")
        with self._dispatching:
            self._dispatch.written(writes)
            self._dispatch.add(taken)
            if self._hands is not None:
                self._hands.feed()
        if writes or taken:
            self._moved_at = now
        if room > 0:
            self._pause_s = LOOK_S[0] if taken else min(LOOK_S[1], self._pause_s * 2)
            self._look_at = now if taken else now + self._pause_s

    def _room(self, now: float) -> int:
        ended, since = self._counted
        if now > since:
            self._window.note(self._dispatch.ended_count - ended, now - since)
            self._counted = (self._dispatch.ended_count, now)
        if now < self._look_at or self._stopping:
            return 0
        if self._is_held_back():
            # Asked again like an empty queue: with nothing in hand, nothing else would make the loop wait.
            self._look_at = now + LOOK_S[1]
            return 0
        size, in_hand = self._window.size, self._dispatch.in_hand
        # Nearly full: a larger take a little later costs less.
        return size - in_hand if in_hand <= size - size // 4 else 0

    def _is_held_back(self) -> bool:
        held = self._held_back()
        if held is not self._was_held_back:
            self._was_held_back = held
            self._log.info(_HELD_BACK if held else "takes messages again", subscriber=self._subscriber)
        return held

    def _wait(self) -> None:
        if self._dispatch.in_hand:
            self._wake.wait(CYCLE_S)
        else:
            pause = self._look_at - clock.monotonic()
            if pause > 0 and self._alert(pause):
                self._look_at = 0.0
        self._wake.clear()

    def _check(self, now: float) -> None:
        assert self._hands is not None, "made by run"
        if self._hands.broken is not None:
            raise self._hands.broken
        longest = self._hands.longest(now)
        if longest is not None and longest[0] > self._limits.deadline_s:
            self._leave_hung(longest[1])

    def _leave_hung(self, ticket: Ticket) -> None:
        """Give back what does not run, name the message that hangs, and let the process end: nothing else ends a thread."""
        self._mark.blame(ticket)
        try:
            with self._dispatching:
                self._dispatch.give_back()
            self._cycle(clock.monotonic(), 0)
        except RelayError:
            pass  # Recovery gives it back.
        raise HandlerHung(
            f"message {ticket.handle}: its handler did not end within {self._limits.deadline_s:g} s; the process ends, "
            "and the message is tried again: mend the handler or give it a longer deadline"
        )

    def _is_idle(self, until_idle_s: float) -> bool:
        now = clock.monotonic()
        if self._dispatch.in_hand or now - self._moved_at < until_idle_s:
            return False
        try:
            with self._turn():
                _, waiting = self._store.counts()
        except Retriable:
            # Retry: nobody can tell now.
            return False
        ours = next((one.counts for one in waiting if one.subscriber == self._subscriber), {})
        return not sum(ours.get(state, 0) for state in (SubscriberState.AVAILABLE, *TAKEN))

    def _drain(self) -> None:
        """Give back what has not begun, wait for what runs, write it, and leave the queue."""
        assert self._hands is not None, "made by run"
        limit = clock.monotonic() + self._limits.drain_s
        self._stopping = True
        while self._has_work():
            with self._dispatching:
                self._dispatch.give_back()
            self._once()
            if clock.monotonic() > limit:
                raise HandlerHung(
                    f"not everything had ended {self._limits.drain_s:g} s after the worker was told to end: the process "
                    "ends, and what it holds is given back by the next one"
                )
            self._wake.wait(CYCLE_S)
            self._wake.clear()
        self._hands.close(self._limits.drain_s)
        with suppress(Retriable, InDoubt), self._turn():  # else whoever comes next forgets it for this worker
            if self._store.leave(self._holder):
                self._mark.close()

    def _has_work(self) -> bool:
        with self._dispatching:  # a hand counts what ended down before it notes what is to be written of it
            return bool(self._dispatch.in_hand or self._dispatch.has_writes or self._states.has_pending)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the store's lock; StoreAway if a handler keeps it."""
        if not self._lock.acquire(timeout=TURN_S):
            raise StoreAway("a handler's transaction holds the queue's database file: try again later")
        try:
            yield
        finally:
            self._lock.release()

    def _make_hands(self) -> Hands | Coroutines:
        run, dispatch, lock, wake = self._run, self._dispatch, self._dispatching, self._wake
        if isinstance(run, AwaitedRunner):

            async def awaited_alone(work: Work) -> Sequence[Ended]:
                with self._marked(work):
                    return await run(work)

            return Coroutines(
                dispatch, lambda work: awaited_alone(work) if work.alone else run(work), lock, wake, run.handlers_close
            )

        def called(work: Work) -> Sequence[Ended]:
            if not work.alone:
                return run(work)
            with self._marked(work):
                return run(work)

        return Hands(dispatch, self._limits.concurrency, called, lock, wake)

    @contextmanager
    def _marked(self, work: Work) -> Iterator[None]:
        """Name a work in the mark as long as it runs: alone, so that a death is its doing."""
        self._mark.blame(work.messages[0].ticket)
        try:
            yield
        finally:
            self._mark.blame(None)
