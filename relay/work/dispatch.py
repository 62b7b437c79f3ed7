"""Which message may run now: in each lane one after the other, in the order in which the queue gave them.

Pure: no I/O, no clock, no threads; the shell calls it under one lock. A head that fails takes the rest of its lane back
with it: those are freed before the head is, so that nobody ever gets a later message of the lane first. So does one that is
UNUSABLE here and that another member of the pool may get.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from relay.queue.message import Taken, Ticket

LANE_WAITING_MAX: Final = 256
"""So many messages of one lane wait here; what comes behind them stays in the queue, for the other lanes' sake."""
TURNS_MAX: Final = 64
"""After so many messages in a row a lane lets the others go first."""
UNEXPLAINED_MAX: Final = 3
"""A message that came back so often without a failure may be what kills its worker: it runs alone."""

EXPLAINED_MAX: Final = 100_000
"""Of so many messages it is known how often this worker let them go and lived; what is forgotten may run alone."""

Lane = bytes | int
"""A lane's bytes, or the handle of a message that has no lane."""


class Outcome(Enum):
    """What came of a message that ran."""

    DONE = "done"
    WRITTEN = "written"
    UNUSABLE = "unusable"
    FAILED = "failed"
    AWAY = "away"
    BACK = "back"
    SPLIT = "split"
    APART = "apart"
    LOST = "lost"


_OVER: Final = (Outcome.DONE, Outcome.WRITTEN, Outcome.UNUSABLE)
"""Not a set: to hash a member of an enumeration runs Python code, for every message."""


class Ended(NamedTuple):
    """The end of one run.

    DONE is yet to be written; WRITTEN was, in the handler's own transaction. AWAY: its database did not let it, so it is
    tried again later and no failure is counted. BACK: nothing happened, or nobody knows, and the guarded write tells.
    SPLIT: one of the batch failed and nobody knows which: each runs again by itself. APART: so does each of this batch, but
    as another attempt, since something may lie elsewhere under this one's name. LOST: this worker was taken for dead.
    What is tried again waits for ``after_s`` seconds at least.
    """

    taken: Taken
    outcome: Outcome
    cause: str = ""
    after_s: float = 0.0


class Work(NamedTuple):
    """What one handler runs at once. ``alone``: nothing else runs beside it, so a death is its doing."""

    messages: tuple[Taken, ...]
    alone: bool = False


class Failure(NamedTuple):
    """A message that waits for its next try, ``after_s`` seconds at least; ``failures`` includes this one if it is ``counted``."""

    ticket: Ticket
    failures: int
    counted: bool = True
    after_s: float = 0.0


@dataclass(slots=True)
class Writes:
    """States to write, in this order and in one transaction."""

    done: list[Ticket] = field(default_factory=list)
    unusable: list[tuple[Ticket, str]] = field(default_factory=list)
    back: list[Ticket] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    lanes: set[Lane] = field(default_factory=set)

    def tickets(self) -> set[Ticket]:
        """Return what is named here."""
        return {
            *self.done,
            *self.back,
            *(ticket for ticket, _ in self.unusable),
            *(one.ticket for one in self.failed),
        }

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.done or self.unusable or self.back or self.failed)


class Dispatch:
    """The messages in one worker's hands. ``tries`` counts the first one; ``batch`` is how many run in one call."""

    def __init__(self, concurrency: int, tries: int, *, batch: int = 1, ordered: bool = True) -> None:
        self._concurrency = concurrency
        self._tries = tries
        self._batch = batch
        self._ordered = ordered
        self._waiting: dict[Lane, deque[Taken]] = {}
        self._ready: deque[Lane] = deque()
        self._turns: dict[Lane, int] = {}
        self._running: dict[int, Lane] = {}
        self._busy: dict[Lane, int] = {}
        self._works = 0
        self._alone = False
        self._single: set[int] = set()
        self._explained: dict[int, int] = {}
        """How often messages went back from here for a reason of others': an outage must not make suspects of all."""
        self._full: set[Lane] = set()
        self._returning: set[Lane] = set()
        self._writes = Writes()
        self._count = 0
        self.ended_count = 0
        self.written_count = 0

    @property
    def in_hand(self) -> int:
        """How many messages wait or run here."""
        return self._count

    @property
    def running(self) -> int:
        """How many messages run."""
        return len(self._running)

    @property
    def has_writes(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._writes)

    @property
    def ready(self) -> int:
        """How many lanes have a message that could start now; none while a suspect waits to be alone, or is."""
        if not self._ready or self._alone or (self._works and self._is_suspect(self._waiting[self._ready[0]][0])):
            return 0
        return len(self._ready)

    def full_lanes(self) -> Collection[bytes]:
        """Return the lanes of which enough waits here: take nothing of them."""
        return [lane for lane in self._full if isinstance(lane, bytes)]

    def add(self, taken: Sequence[Taken]) -> None:
        """Accept what was taken, in the order of the take."""
        for one in taken:
            lane = self._lane(one)
            if lane in self._returning:
                # An earlier one of the lane is on its way back: this one must not overtake it.
                self._writes.back.append(one.ticket)
                continue
            self._count += 1
            waiting = self._waiting.get(lane)
            if waiting is None:
                self._waiting[lane] = deque((one,))
                if lane not in self._busy:
                    self._ready.append(lane)
                continue
            waiting.append(one)
            if len(waiting) >= LANE_WAITING_MAX:
                self._full.add(lane)

    def next(self) -> Work | None:
        """Return what may start now, None if nothing may: all hands are full, or every lane is busy."""
        if not self._ready or self._alone or self._works >= self._concurrency:
            return None
        first = self._waiting[self._ready[0]][0]
        if self._is_suspect(first):
            if self._works:
                return None
            self._alone = True
            return self._start([self._pop(self._ready.popleft())], alone=True)
        return self._start(self._gather() if self._batch > 1 else [self._pop(self._ready.popleft())])

    def ended(self, ends: Sequence[Ended]) -> None:
        """Note how a `Work` ended; ``ends`` has all its messages, in its order."""
        self._works -= 1
        self._alone = False
        for end in ends:
            self._running.pop(end.taken.ticket.handle)
        if split := [end.taken for end in ends if end.outcome is Outcome.SPLIT]:
            self._single.update(one.ticket.handle for one in split)
            for one in reversed(split):
                self._waiting.setdefault(self._lane(one), deque()).appendleft(one)
        for end in ends:
            self._end(end)

    def writes(self) -> Writes:
        """Return what is to be written, and begin a new collection; tell `written` afterwards."""
        writes, self._writes = self._writes, Writes()
        for ticket in (*writes.back, *(one.ticket for one in writes.failed if not one.counted)):
            self._explained[ticket.handle] = self._explained.pop(ticket.handle, 0) + 1
        while len(self._explained) > EXPLAINED_MAX:
            del self._explained[next(iter(self._explained))]
        return writes

    def written(self, writes: Writes) -> None:
        """Note that these are durable: their lanes may come again, but for those that failed meanwhile."""
        self._returning = (self._returning - writes.lanes) | self._writes.lanes

    def give_back(self) -> None:
        """Let everything go that does not run; what runs ends in its time."""
        for lane in list(self._waiting):
            self._return_lane(lane)

    def has(self, ticket: Ticket) -> bool:
        """Tell whether a message is here, to wait, to run or to be written; for the rare case that an answer was lost."""
        if ticket.handle in self._running or ticket in self._writes.tickets():
            return True
        return any(one.ticket == ticket for waiting in self._waiting.values() for one in waiting)

    def _lane(self, one: Taken) -> Lane:
        return one.lane if self._ordered and one.lane is not None else one.ticket.handle

    def _start(self, messages: list[Taken], *, alone: bool = False) -> Work:
        self._works += 1
        for one in messages:
            lane = self._lane(one)
            self._running[one.ticket.handle] = lane
            self._busy[lane] = self._busy.get(lane, 0) + 1
        return Work(tuple(messages), alone)

    def _pop(self, lane: Lane) -> Taken:
        waiting = self._waiting[lane]
        one = waiting.popleft()
        if not waiting:
            del self._waiting[lane]
        if len(waiting) < LANE_WAITING_MAX:
            self._full.discard(lane)
        return one

    def _gather(self) -> list[Taken]:
        """Take whole lanes from the front until the batch is full; a suspect, or one that must run by itself, ends it."""
        batch: list[Taken] = []
        while self._ready and len(batch) < self._batch:
            lane = self._ready[0]
            if self._is_apart(self._waiting[lane][0]):
                return batch or [self._pop(self._ready.popleft())]
            self._ready.popleft()
            while (
                lane in self._waiting
                and len(batch) < self._batch
                and not self._is_apart(self._waiting[lane][0])
            ):
                batch.append(self._pop(lane))
        return batch

    def _is_apart(self, one: Taken) -> bool:
        return one.ticket.handle in self._single or self._is_suspect(one)

    def _is_suspect(self, one: Taken) -> bool:
        explained = one.failures + self._explained.get(one.ticket.handle, 0)
        return one.ticket.attempt - 1 - explained >= UNEXPLAINED_MAX

    def _end(self, end: Ended) -> None:
        lane, ticket = self._lane(end.taken), end.taken.ticket
        self._busy[lane] -= 1
        if not self._busy[lane]:
            del self._busy[lane]
        if end.outcome is not Outcome.SPLIT:
            self._count -= 1
            self.ended_count += 1
            self._single.discard(ticket.handle)
        self._note(end, lane)
        if lane not in self._busy and lane in self._waiting:
            self._go_on(lane)
        elif lane not in self._busy:
            self._turns.pop(lane, None)

    def _note(self, end: Ended, lane: Lane) -> None:
        ticket = end.taken.ticket
        failures = end.taken.failures + 1
        if end.outcome in _OVER:
            self._explained.pop(ticket.handle, None)
        if end.outcome is Outcome.DONE:
            self._writes.done.append(ticket)
        elif end.outcome is Outcome.WRITTEN:
            self.written_count += 1
        elif end.outcome is Outcome.UNUSABLE or (end.outcome is Outcome.FAILED and failures >= self._tries):
            if end.taken.in_pool:
                self._return_lane(lane)
            self._writes.unusable.append((ticket, end.cause))
        elif end.outcome is Outcome.FAILED:
            self._return_lane(lane)
            self._writes.failed.append(Failure(ticket, failures, after_s=end.after_s))
        elif end.outcome is Outcome.AWAY:
            self._return_lane(lane)
            self._writes.failed.append(Failure(ticket, end.taken.failures, counted=False, after_s=end.after_s))
        elif end.outcome is Outcome.APART:
            self._return_lane(lane)
            self._run_apart(ticket.handle)
            self._writes.back.append(ticket)
        elif end.outcome in {Outcome.BACK, Outcome.LOST}:
            # Also what was LOST: whoever took this worker for dead may have died before giving the message away.
            self._return_lane(lane)
            self._writes.back.append(ticket)

    def _run_apart(self, handle: int) -> None:
        """Let a message run by itself when it comes again; another worker may get it, so this is not kept of all for ever."""
        if len(self._single) >= EXPLAINED_MAX:
            self._single.clear()
        self._single.add(handle)

    def _go_on(self, lane: Lane) -> None:
        """Let the lane's next message start: at once, or after the other lanes when it had many turns."""
        turns = self._turns.get(lane, 0) + 1
        if turns < TURNS_MAX:
            self._turns[lane] = turns
            self._ready.appendleft(lane)
        else:
            self._turns.pop(lane, None)
            self._ready.append(lane)

    def _return_lane(self, lane: Lane) -> None:
        self._returning.add(lane)
        self._writes.lanes.add(lane)
        self._full.discard(lane)
        rest = self._waiting.pop(lane, None)
        if rest is None:
            return
        self._count -= len(rest)
        self._single.difference_update(one.ticket.handle for one in rest)
        self._writes.back.extend(one.ticket for one in rest)
        if lane not in self._busy and lane in self._ready:
            self._ready.remove(lane)
