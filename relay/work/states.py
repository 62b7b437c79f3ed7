"""Writes what came of messages, many in one transaction, and takes the next ones in the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from relay.message.errors import InDoubt
from relay.queue.message import Taken, Ticket
from relay.queue.port import QueueStore, ValuesAway
from relay.queue.states import SubscriberState
from relay.work.backoff import Backoff
from relay.work.dispatch import Dispatch, Writes
from relay.world import clock, randomness, schedule


@dataclass(slots=True)
class Report:
    """What a worker did, in messages; ``overtaken`` are those that another worker had taken over meanwhile."""

    taken: int = 0
    done: int = 0
    unusable: int = 0
    failed: int = 0
    returned: int = 0
    children: int = 0
    overtaken: int = 0
    recovered: int = 0


class States:
    """One subscriber's states in one store, written by one holder. Call it with the store's lock held.

    A write whose answer is lost is written once more: tickets make that harmless. What the lost transaction had taken is
    then given back, since nobody knows its contents. ``done`` is told what has become DONE, when that is durable.
    """

    def __init__(
        self,
        store: QueueStore,
        subscriber: str,
        holder: bytes,
        backoff: Backoff,
        report: Report,
        done: Callable[[Sequence[Ticket]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._subscriber = subscriber
        self._holder = holder
        self._backoff = backoff
        self._report = report
        self._done = done
        self._again: Writes | None = None
        self._in_doubt = False

    @property
    def has_pending(self) -> bool:
        """Whether an earlier cycle could not write, or does not know whether it did."""
        return self._in_doubt or bool(self._again)

    def pending(self, fresh: Writes) -> Writes:
        """Return what is to be written: ``fresh``, after what an earlier cycle could not write. It is kept until it was."""
        self._again = fresh if self._again is None else _joined(self._again, fresh)
        return self._again

    def write_and_take(self, writes: Writes, room: int, without: Collection[bytes]) -> list[Taken]:
        """Write and take up to ``room`` messages as one unit; raises what the store raises, and keeps ``writes`` for then."""
        now = clock.wall_ms()
        taken: list[Taken] = []
        counted = Report()
        self._again = writes
        try:
            with self._store.transaction():
                done = self._write(writes, now, counted)
                if room > 0:
                    taken = self._take(writes, room, without, now)
        except InDoubt:
            # In doubt: find out by writing once more, see `resync`.
            self._in_doubt = True
            raise
        self._again = None
        self._count(counted, len(taken))
        if done:
            self._done(done)
        return taken

    def _take(self, writes: Writes, room: int, without: Collection[bytes], now: int) -> list[Taken]:
        try:
            return self._store.take(self._subscriber, self._holder, room, now, without=without, start=True)
        except ValuesAway:
            if not writes:
                raise
            # Retry in the next cycle, which has nothing to write: what is done would else not be, for as long as the log is away.
            return []

    def resync(self, dispatch: Dispatch, lock: schedule.Lock) -> None:
        """After a lost answer: give back what this holder has according to the store, and nobody here knows of."""
        if not self._in_doubt:
            return
        known = self._again or Writes()
        written = known.tickets()
        with self._store.transaction():
            # Waits for a take whose COMMIT is under way still: what it took would be this holder's for ever, and nobody would know.
            self._store.beat(self._holder)
            with lock:
                lost = [t for t in self._store.held(self._holder) if t not in written and not dispatch.has(t)]
            returned = sum(self._store.free(self._subscriber, lost, clock.wall_ms())) if lost else 0
        self._report.returned += returned
        self._in_doubt = False

    def _write(self, writes: Writes, now: int, counted: Report) -> list[Ticket]:
        """Write all states and return what is DONE once the unit is durable."""
        done = self._finish(writes.done, now)
        counted.done += len(done)
        if writes.back:
            counted.returned += sum(self._store.free(self._subscriber, writes.back, now))
        if writes.unusable:
            counted.unusable += sum(self._store.refuse(self._subscriber, writes.unusable, now))
        for failure in writes.failed:
            again_at = now + self._backoff.pause_ms(failure.failures, randomness.jitter(), failure.after_s)
            answer = self._store.free(
                self._subscriber, [failure.ticket], now, again_at=again_at, failed=failure.counted
            )
            counted.failed += sum(answer)
        return done

    def _finish(self, tickets: Sequence[Ticket], now: int) -> list[Ticket]:
        if not tickets:
            return []
        answers = self._store.finish(self._subscriber, tickets, now)
        if all(answers):
            return list(tickets)
        # No: another worker took it over, or this very write stood already and its answer was lost.
        refused = [ticket for ticket, yes in zip(tickets, answers, strict=True) if not yes]
        held = self._store.holds(self._subscriber, refused)
        stood = [ticket for ticket, state in zip(refused, held, strict=True) if state is SubscriberState.DONE]
        self._report.overtaken += len(refused) - len(stood)
        return [ticket for ticket, yes in zip(tickets, answers, strict=True) if yes] + stood

    def _count(self, counted: Report, taken: int) -> None:
        self._report.taken += taken
        self._report.done += counted.done
        self._report.unusable += counted.unusable
        self._report.failed += counted.failed
        self._report.returned += counted.returned


def _joined(first: Writes, second: Writes) -> Writes:
    return Writes(
        first.done + second.done,
        first.unusable + second.unusable,
        first.back + second.back,
        first.failed + second.failed,
        first.lanes | second.lanes,
    )
