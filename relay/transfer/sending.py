"""Sending: batches go to a cursor one after the other in a thread of their own, each until it is answered.

Every batch has a timer. No answer in time means that it is sent again on a new connection, with backoff and jitter
(US 8,200,836); an answer that is lost is in doubt, and since the cursor accepts a repeat by identity, sending again
is how it is found out. Only fencing and what a person must mend end a batch without an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import structlog

from relay.message.errors import Fenced, InDoubt, RelayError, Retriable, Unreachable
from relay.message.record import LogPartition
from relay.transfer.cursor import TableCursor, Verdict
from relay.transfer.timers import ResendTimes
from relay.world import schedule

log = structlog.get_logger("relay.sending")
LET_GO_S: Final = 10.0
"""A closed connection fails its call at once; longer than this something else hangs."""
LET_GO_TRIES: Final = 10
CLOSE_S: Final = 5.0
"""So long the end waits for a batch that is under way, before it interrupts that, and for the thread after it."""
TRIM_ANSWER_S: Final = 60.0
"""A trim without an answer for so long, beyond what a database lets its statements take, holds up what waits behind it."""


class Sending:
    """Owns the cursor's thread; every other method is called by the worker's thread."""

    def __init__(self, cursor: TableCursor, times: ResendTimes, clock: Callable[[], float]) -> None:
        self.resent = 0
        self._cursor = cursor
        self._times = times
        self._clock = clock
        self._work: schedule.Queue[tuple[int, Mapping[LogPartition, int], Any] | None] = schedule.fifo()
        self._answers: schedule.Queue[tuple[int, list[Verdict] | BaseException]] = schedule.fifo()
        self._trims: schedule.Queue[tuple[int, LogPartition, int]] = schedule.fifo()
        self._trim_series = 0
        self._wake = schedule.event()
        self._pause = schedule.event()
        self._cursor_in_use = schedule.lock()
        self._series = 0
        self._failed_series = -1
        self._open = 0
        self._trimming = False
        self._expires: float | None = None
        """Set by the thread that uses the cursor alone: it may just have gone on to what comes next."""
        self._let_go = (0.0, 0.0)
        """The expiry for which the connection was closed last, and when it is closed again for that one."""
        self._attempt = 0
        cursor.progressed = self._progressed
        self._thread: schedule.Thread | None = None

    def send(self, positions: Mapping[LogPartition, int], prepared: Any) -> None:
        """Hand a batch over."""
        if self._thread is None:
            self._thread = schedule.start_thread("relay-cursor", self._run)
        self._open += 1
        self._work.put((self._series, positions, prepared))

    def answers(self) -> list[list[Verdict]]:
        """Return the answers so far, in the order sent; raises what ended a batch without one."""
        found: list[list[Verdict]] = []
        while True:
            try:
                series, answer = self._answers.get_nowait()
            except schedule.Empty:
                return found
            if series != self._series:
                continue
            self._open -= 1
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)

    def wait(self, seconds: float) -> None:
        """Wait until something is answered, at most so long."""
        self._wake.clear()
        if self._answers.empty():
            self._wake.wait(seconds)

    def is_idle(self) -> bool:
        """Is everything answered, taken or not?"""
        return self._answers.qsize() >= self._open

    def tend(self, now: float) -> None:
        """The timer: a batch without an answer in time loses its connection and is sent again by its thread."""
        expires = self._expires
        if expires is None:
            return
        closed_for, again_at = self._let_go
        if now >= (again_at if expires == closed_for else expires):
            # Once more after that: there may be no connection yet that could be closed.
            self._let_go = (expires, now + LET_GO_S)
            log.warning("no answer in time; sending again on a new connection")
            self._cursor.abandon()

    def trim(self, partition: LogPartition, below: int) -> None:
        """Have inbox rows below an offset deleted when the thread is free."""
        self._trims.put((self._trim_series, partition, below))

    def forget_trims(self) -> None:
        """Have nothing deleted any more that was asked for up to now, once what is under way is through."""
        self._trim_series += 1

    def abandon(self) -> None:
        """Forget what is under way and wait until the thread has let go of the cursor.

        An answer that still comes is not looked at. Raises InDoubt if the thread hangs.
        """
        self._series += 1
        self._pause.set()
        self._open = 0
        if not self._cursor_in_use.acquire(blocking=False):
            self._end_use()
        self._cursor_in_use.release()
        self._pause.clear()

    def _end_use(self) -> None:
        """Close the connection until the thread lets go: one that is just being made cannot be closed yet."""
        for _ in range(LET_GO_TRIES):
            self._cursor.abandon()
            if self._cursor_in_use.acquire(timeout=LET_GO_S / LET_GO_TRIES):
                return
        raise InDoubt("the cursor's connection was closed and its thread still waits; nothing is known of its batch")

    def close(self) -> bool:
        """End the thread after what is under way, or without it once that has taken so long; is it ended?

        Nobody else may use the cursor, or close its connection, while the thread goes on: SQLite's ends the process then.
        """
        if self._thread is None:
            return True
        self._work.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            with suppress(InDoubt):  # it hangs, as the answer says
                self.abandon()
            self._thread.join(CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                self._one(*work)
        except Exception as unexpected:  # noqa: BLE001 - a thread must not die in silence: the worker stops loudly
            self._answers.put((self._series, unexpected))
            self._wake.set()

    def _one(self, series: int, positions: Mapping[LogPartition, int], prepared: Any) -> None:
        with self._cursor_in_use:
            if series == self._series:
                answer = self._answered(series, positions, prepared)
                if isinstance(answer, BaseException):
                    self._failed_series = series
                self._answers.put((series, answer))
                self._wake.set()
            self._run_trims(series)

    def _answered(self, series: int, positions: Mapping[LogPartition, int], prepared: Any) -> list[Verdict] | BaseException:
        if series == self._failed_series:
            # It would move the position past the messages of the batch that has failed before it.
            return Fenced("a batch before it has failed")
        return self._until_answered(series, positions, prepared)

    def _until_answered(
        self, series: int, positions: Mapping[LogPartition, int], prepared: Any
    ) -> list[Verdict] | BaseException:
        self._attempt = 0
        while series == self._series:
            self._expires = self._due()
            try:
                answer = self._cursor.deliver(positions, prepared)
            except (InDoubt, Retriable, Unreachable) as unanswered:
                # In doubt, retry: sent again, and the inbox tells a repeat.
                if series != self._series:
                    break
                log.warning("sending again", kind=type(unanswered).__name__, reason=str(unanswered))
            except RelayError as final:
                return final  # fenced or stopped: the worker's thread decides
            except Exception as unexpected:  # noqa: BLE001 - it must reach the worker's thread, which stops loudly
                return unexpected
            else:
                return answer
            finally:
                self._expires = None
            self._attempt += 1
            self.resent += 1
            self._pause.wait(self._times.pause_s(self._attempt))
        return Fenced("the batch was abandoned")

    def _due(self) -> float:
        return self._clock() + self._times.wait_s(self._attempt)

    def _progressed(self) -> None:
        """A part is answered, or a statement works: the connection lives, so the timer starts again.

        Rows at fault are found one by one; thousands of them take longer than any wait, and sent again they would
        take as long again, for ever.
        """
        if self._trimming:
            self._expires = self._clock() + TRIM_ANSWER_S
        elif self._expires is not None:
            self._expires = self._due()

    def _run_trims(self, series: int) -> None:
        """Trim what the monitor holds by now: with the next delivery, or at once while nothing waits."""
        try:
            while series == self._series and not self._trims.empty():
                asked, partition, below = self._trims.get_nowait()
                while asked == self._trim_series and self._trim(partition, below):
                    if not self._work.empty() or series != self._series:
                        break
        except RelayError as failure:
            log.info("inbox not trimmed", reason=str(failure))  # retry: the next acknowledgement trims further

    def _trim(self, partition: LogPartition, below: int) -> bool:
        """Trim once, under a timer: a connection that fell silent must not hold up the next batch, whose own timer
        starts when it is sent."""
        self._expires, self._trimming = self._clock() + TRIM_ANSWER_S, True
        try:
            return self._cursor.trim(partition, below)
        finally:
            self._expires, self._trimming = None, False
