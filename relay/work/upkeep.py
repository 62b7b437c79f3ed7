"""What a worker does now and then beside handling: it beats, shows what is due, and decides for workers that died."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from relay.message.errors import RelayError, Retriable, Unreachable
from relay.queue.attempts import AttemptName, Outcomes, PreparedTransactions
from relay.queue.desired import Desired, Wish
from relay.queue.message import Ticket
from relay.queue.port import Holder, QueueStore
from relay.queue.recovery import SILENT, Recovery
from relay.queue.withholding import reveal_kept
from relay.work.backoff import Backoff
from relay.work.leases import BEATS_PER_LEASE, Leases
from relay.work.mark import dead_mark
from relay.world import clock, randomness
from relay.world.seldom import Repeats

LOOK_S: Final = 1.0
DUE_MAX: Final = 1000
DUE_S: Final = 0.5
"""So long a worker goes on, at each look, with what is due: messages that are delayed, or expire, by the million."""
PREPARED_S: Final = 5.0
"""So often further databases are asked what attempts have left prepared there."""
UNNAMED_S: Final = 600.0
"""So often databases are asked that the handler does not name, but may have named before: at the start, and then this often."""
KILLED: Final = "its handler ended the worker's process, or did not end in time"


OpenPrepared = Callable[[ExitStack], PreparedTransactions]


class _OfQueue:
    """What the attempts of one queue left prepared: those of others are their workers' own, who have their stores open."""

    def __init__(self, queue: str, effects: PreparedTransactions) -> None:
        self._queue = queue
        self._effects = effects
        self.finish = effects.finish

    def pending(self) -> list[str]:
        """Return the queue's attempts."""
        return [attempt for attempt in self._effects.pending() if self._is_own(attempt)]

    def _is_own(self, attempt: str) -> bool:
        try:
            return AttemptName.decode(attempt).queue == self._queue
        except ValueError:
            return False


class HolderForgotten(RelayError):
    """Others took this worker for dead and gave its messages away: it must stop at once."""


class Upkeep:
    """One worker's duties in its queue, on the worker's main thread. ``now`` is seconds on the monotonic clock.

    ``queues`` and ``deciding`` are what recovery may reach; ``lent`` hands out a deciding resource while it is used.
    ``prepared`` opens the further databases of this worker's handler, each by its name, for as long as ``lent`` lasts;
    ``unnamed`` does so for the other databases of the configuration, where an earlier application may have prepared something.
    ``desired`` tells what persons want: of publishers that they hold nothing is revealed.
    """

    def __init__(
        self,
        queue: str,
        queues: Mapping[str, QueueStore],
        deciding: Callable[[ExitStack], Mapping[str, Outcomes]],
        own: Holder,
        marks: Path,
        lease_s: float,
        backoff: Backoff,
        prepared: Mapping[str, OpenPrepared] | None = None,
        unnamed: Mapping[str, OpenPrepared] | None = None,
        desired: Callable[[], Desired] = Desired,
    ) -> None:
        self._queue = queue
        self._queues = queues
        self._store = queues[queue]
        self._deciding = deciding
        self._own = own
        self._marks = marks
        self._leases = Leases(lease_s, own.id)
        self._beat_s = lease_s / BEATS_PER_LEASE
        self._look_s = min(LOOK_S, self._beat_s)
        self._backoff = backoff
        self._prepared = prepared or {}
        self._prepared_at = 0.0
        self._unnamed = unnamed or {}
        self._unnamed_at = dict.fromkeys(self._unnamed, 0.0)
        self._desired = desired
        self._resumed: frozenset[Wish] = frozenset()
        self._children_after = 0
        self._beat_at = 0.0
        self._look_at = 0.0
        self.recovered = 0
        self._log: Any = structlog.get_logger("relay.work")
        self._repeats = Repeats()

    def once(self, now: float) -> None:
        """Do what is due; raises HolderForgotten, and what the store raises."""
        if now >= self._beat_at:
            if not self._store.beat(self._own.id):
                raise HolderForgotten(
                    "this worker was silent for a whole lease and others have its messages: it ends"
                )
            self._beat_at = now + self._beat_s
        if now >= self._look_at:
            self._look_at = now + self._look_s
            wall = clock.wall_ms()
            self._reveal_due(wall)
            self._all_due(self._store.expire, wall)
            self.recover(now)
        if self._prepared and now >= self._prepared_at:
            self._prepared_at = now + PREPARED_S
            for resource, opened in self._prepared.items():
                self._finish_prepared(resource, opened)
        self._finish_unnamed(now)

    def _reveal_due(self, wall: int) -> None:
        """Reveal what was delayed, but for held publishers; of one that goes on, what waits for a word comes before it.

        That is so also where this process started since, or did not look while the publisher was held.
        """
        desired = self._desired()
        resumed = desired.resumptions(self._queue)
        for publisher in sorted({wish.subject.name for wish in resumed - self._resumed}):
            reveal_kept(self._store, publisher, wall)
        self._resumed = resumed
        self._all_due(partial(self._store.reveal_due, held=desired.held_publishers(self._queue)), wall)

    def _all_due(self, some: Callable[[int, int], int], wall: int) -> None:
        """Let what is due come, in small steps, until none is left or the worker's own messages have waited long enough."""
        limit = clock.monotonic() + DUE_S
        while some(wall, DUE_MAX) >= DUE_MAX and clock.monotonic() < limit:
            pass

    def _finish_prepared(self, resource: str, opened: Callable[[ExitStack], PreparedTransactions]) -> None:
        """Finish what attempts that have ended left prepared; a further database that is away is asked again later."""
        with ExitStack() as lent:
            try:
                recovery = Recovery(self._queues, self._deciding(lent))
                stuck = recovery.prepared(resource, opened(lent), clock.wall_ms()).stuck
            except Unreachable as away:
                stuck = [str(away)]
            for sentence in stuck:
                self._say_once("prepared writes wait", sentence)

    def _finish_unnamed(self, now: float) -> None:
        """Finish what the queue's handler prepared in a database that it does not name any more; one at a time: each may be away."""
        for resource, due in self._unnamed_at.items():
            if now < due:
                continue
            self._unnamed_at[resource] = now + UNNAMED_S
            with ExitStack() as lent, suppress(*SILENT):  # nothing here needs it: asked again later
                effects = _OfQueue(self._queue, self._unnamed[resource](lent))
                if not effects.pending():
                    return
                done = Recovery(self._queues, self._deciding(lent)).prepared(resource, effects, clock.wall_ms())
                # Some may be under way still, of workers of an earlier application: they end soon.
                self._unnamed_at[resource] = now + PREPARED_S
                for sentence in done.stuck:
                    self._say_once("prepared writes wait in a database that the handler does not name", sentence)
                if done.finished or done.discarded:
                    self._log.info(
                        "finished prepared writes in a database that the handler does not name",
                        resource=resource,
                        committed=done.finished,
                        rolled_back=done.discarded,
                    )
            return

    def recover(self, now: float) -> None:
        """Decide about what dead workers left: those proven dead on this host, and those silent for a whole lease."""
        holders = self._store.holders()
        silent = {holder.id for holder in self._leases.silent(holders, now)}
        others = [holder for holder in holders if holder.id != self._own.id]
        with ExitStack() as lent:
            recovery: Recovery | None = None
            for holder in others:
                mark = dead_mark(self._marks, holder.id)
                if mark is None and holder.id not in silent:
                    continue
                recovery = recovery or Recovery(self._queues, self._deciding(lent))
                gone = False
                try:
                    if mark is not None and mark.blamed is not None:
                        self._blame(holder, mark.blamed)
                    gone = self._holder(recovery, holder)
                finally:
                    if mark is not None:
                        mark.close(remove=gone)
            if self._store.children(1):
                self._children(recovery or Recovery(self._queues, self._deciding(lent)))

    def _children(self, recovery: Recovery) -> None:
        """Go through the children in pages, as far as the worker's own messages may wait; the next look goes on there."""
        limit = clock.monotonic() + DUE_S
        while True:
            done = recovery.children(self._queue, clock.wall_ms(), after=self._children_after)
            self._children_after = done.after
            if done.stuck:
                self._say_once("children wait", done.stuck[0], others=len(done.stuck) - 1)
            if not done.after or clock.monotonic() >= limit:
                return

    def _holder(self, recovery: Recovery, holder: Holder) -> bool:
        """Give back or finish what it held, all of it in one write; True if nothing is left of it."""
        if holder.deciding in {None, f"queue:{self._queue}"}:
            # Its decisions are written with DONE: what is still held was not decided.
            with self._store.transaction():
                freed = sum(self._store.free(holder.subscriber, self._store.held(holder.id), clock.wall_ms()))
                gone = self._store.leave(holder.id)
            self.recovered += freed
            self._log.info("recovered a dead worker", freed=freed, finished=0)
            return gone
        with self._store.transaction():
            done = recovery.holder(self._queue, holder, clock.wall_ms())
        self.recovered += done.freed + done.finished
        for sentence in done.stuck:
            self._say_once("stuck", sentence)
        if not done.stuck:
            self._log.info("recovered a dead worker", freed=done.freed, finished=done.finished)
        return not done.stuck

    def _blame(self, holder: Holder, ticket: Ticket) -> None:
        """Count a failure of the message that its worker died with, unless it was decided before."""
        view = self._store.view(ticket.handle, value=False)
        mine = (
            [] if view is None else [one for one in view.subscribers if one.subscriber == holder.subscriber]
        )
        if not mine or ticket not in self._store.held(holder.id):
            return
        now = clock.wall_ms()
        if holder.deciding not in {None, f"queue:{self._queue}"}:
            name = AttemptName(str(holder.deciding), self._queue, self._store.uuid, holder.subscriber, ticket)
            try:
                with ExitStack() as lent:
                    outcomes = self._deciding(lent).get(name.deciding)
                    if outcomes is None or outcomes.settle(name.encode(), committed=False, now=now):
                        return
            except SILENT:
                # Retry: what decides is away, or a person must mend it, so its holder stays stuck, and the mark goes on naming the message.
                return
        failures = mine[0].failures + 1
        if failures >= self._store.settings.tries:
            self._store.refuse(holder.subscriber, [(ticket, KILLED)], now)
            return
        # The rest of its lane first, and the message itself at the end, so that nobody gets a later one before it.
        with self._store.transaction():
            rest = [one for one in self._store.held(holder.id) if one != ticket]
            if holder.deciding in {None, f"queue:{self._queue}"}:
                self._store.free(holder.subscriber, rest, now)
            again_at = now + self._backoff.pause_ms(failures, randomness.jitter())
            self._store.free(holder.subscriber, [ticket], now, again_at=again_at, failed=True)

    def _say_once(self, event: str, sentence: str, **more: int | str) -> None:
        """Say what waits, once a minute: it is looked at every second, and may wait for days."""
        if not self._repeats.is_one(f"{event}: {sentence}", clock.monotonic()):
            self._log.warning(event, reason=sentence, **more)

    def away(self, error: Retriable) -> None:
        """Say that the store did not do something, and why, since a person may have to act; it is tried again.

        What stores raise holds neither values of messages nor passwords.
        """
        self._say_once("the queue's store does not take it for now", str(error), kind=type(error).__name__)
