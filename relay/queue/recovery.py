"""After a failure every store is brought to what the deciding store says; run again at any point it ends the same.

Steps 1 to 5 of document 003, [66] to [70], with what design.md section 8 changes: an attempt's outcome decides about its
children and parents, not the parents' states, and *aborted* is written before anything is freed or discarded. Step 4, what
was put without a parent and not revealed, waits for its publisher's word: `withholding.reveal_kept`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from relay.message.errors import ConfigError, Retriable, Stopped, Unreachable
from relay.queue.attempts import AttemptName, Outcomes, PreparedTransactions
from relay.queue.message import Ticket
from relay.queue.port import Holder, QueueStore
from relay.queue.states import TAKEN
from relay.world.crash import crash_point

BATCH = 500
SILENT: Final = (Retriable, Unreachable, Stopped, ConfigError)
"""Who does not answer, for now or until a person has mended it: what it decides waits, and nothing else does."""


@dataclass
class Recovered:
    """What a recovery did, in messages; ``stuck`` says in sentences what waits for a store that is away.

    ``after`` is the handle behind which the next look goes on, 0 where this one has come to the end.
    """

    freed: int = 0
    finished: int = 0
    revealed: int = 0
    discarded: int = 0
    after: int = 0
    stuck: list[str] = field(default_factory=list)


class Recovery:
    """Recovers queues by name; ``deciding`` finds the store of an attempt's outcome by what its name calls it.

    Make one for each look: a queue that does not answer is waited for once, however many attempts wait for it.
    """

    def __init__(self, queues: Mapping[str, QueueStore], deciding: Mapping[str, Outcomes]) -> None:
        self._queues = queues
        self._deciding = deciding
        self._away: set[str] = set()

    def holder(self, queue: str, holder: Holder, now: int) -> Recovered:
        """Give back, or finish, what a dead worker holds (step 5). Call it only when its lease has run out, or it said it ends.

        With an outcome in another store nothing is freed before (aborted) was tried there; that store away: stuck.
        """
        done = Recovered()
        store = self._queues[queue]
        for ticket in store.held(holder.id):
            committed = self._settled(store, queue, holder, ticket, done, now)
            if committed is None:
                # What stands behind it waits as well: finished first, it would show to the next group in order first.
                break
            crash_point("recovery.outcome")
            if committed:
                done.finished += sum(store.finish(holder.subscriber, [ticket], now))
            else:
                done.freed += sum(store.free(holder.subscriber, [ticket], now))
            crash_point("recovery.freed")
        store.leave(holder.id)
        return done

    def children(self, queue: str, now: int, *, after: int = 0) -> Recovered:
        """Reveal or discard a page of what a queue holds of attempts that have ended (steps 1 to 3).

        Give ``after`` of the answer to the next look: what nobody can decide now must not hide what lies behind it.
        """
        done = Recovered()
        store = self._queues[queue]
        found = store.children(BATCH, after=after)
        if len(found) == BATCH:
            done.after = found[-1].handle
        for child in found:
            committed = self._outcome_of(child.attempt, f"message {child.handle} of {queue}", done, now)
            if committed is None:
                continue
            crash_point("recovery.outcome")
            if committed:
                done.revealed += sum(store.accept([child.handle], now))
            else:
                done.discarded += sum(store.discard([child.handle], now))
        return done

    def prepared(self, resource: str, effects: PreparedTransactions, now: int) -> Recovered:
        """Finish what attempts that have ended left prepared in a database, by their outcome; never by age."""
        done = Recovered()
        for attempt in effects.pending():
            committed = self._outcome_of(attempt, f"a prepared transaction in resources.{resource}", done, now)
            if committed is None:
                continue
            crash_point("recovery.outcome")
            try:
                finished = effects.finish(attempt, committed=committed)
            except SILENT as refused:
                # Retry later: one that cannot be finished now must not keep the others, which hold locks.
                done.stuck.append(f"attempt {attempt} cannot be finished in resources.{resource}: {refused}")
                continue
            done.finished += finished and committed
            done.discarded += finished and not committed
        return done

    def _settled(self, store: QueueStore, queue: str, holder: Holder, ticket: Ticket, done: Recovered, now: int) -> bool | None:
        if holder.deciding is None or holder.deciding == f"queue:{queue}":
            # Its decision is written with DONE: what is still taken was not decided, and a late one fails on the ticket.
            return False
        name = AttemptName(holder.deciding, queue, store.uuid, holder.subscriber, ticket)
        return self._settle(name, done, now)

    def _outcome_of(self, attempt: str, what: str, done: Recovered, now: int) -> bool | None:
        """Return how an attempt ended, None if it has not, or nobody can say now; its worker is taken for dead by its lease only."""
        try:
            name = AttemptName.decode(attempt)
        except ValueError:
            done.stuck.append(f"{what} waits for {attempt!r}, which is no attempt of a queue")
            return None
        if name.queue in self._away:
            return None  # said already
        try:
            # Opened when it is first asked for: already that may find it away.
            parents = self._queues.get(name.queue)
            if parents is None:
                done.stuck.append(f"{what} waits for an attempt in queue {name.queue!r}, which is not configured here")
                return None
            alive = parents.uuid == name.uuid and parents.holds(name.subscriber, [name.ticket])[0] in TAKEN
        except SILENT as away:
            self._away.add(name.queue)
            done.stuck.append(f"{what} waits for queue {name.queue!r}: {away}")
            return None
        if alive:
            return None
        return self._settle(name, done, now)

    def _settle(self, name: AttemptName, done: Recovered, now: int) -> bool | None:
        try:
            # Connected to when it is first asked for: already that may find it away.
            deciding = self._deciding.get(name.deciding)
            if deciding is None:
                done.stuck.append(f"attempt {name.encode()} is decided by {name.deciding}, which is not configured here")
                return None
            return deciding.settle(name.encode(), committed=False, now=now)
        except SILENT as away:
            done.stuck.append(f"attempt {name.encode()} is decided by {name.deciding}, which does not answer: {away}")
            return None
