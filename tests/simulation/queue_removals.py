"""Guards of queues and of attempts, each removable by name, as in `removals`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from relay.queue.attempts import AttemptName
from relay.queue.message import Taken
from relay.queue.recovery import Recovered, Recovery
from relay.queue.states import SubscriberState
from relay.queue.stores import sql_text as sql
from relay.queue.stores.sql_session import Row, unit
from relay.queue.stores.sql_subscribing import Subscribing
from relay.resources.attempts import PostgresqlAttempts
from relay.work import coroutines, running
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import LeftToTheRelay

Change = tuple[Any, str, Any]
OF_ATTEMPT: Final = " and attempt = :attempt"
ENDED: Final = (SubscriberState.DONE, SubscriberState.JOURNALLED)


def attempt_token_ignored() -> list[Change]:
    """Whoever names a message may start, finish, refuse or free it, whichever attempt is its own."""

    guarded = Subscribing._guarded

    def unguarded(self: Subscribing, text: str, *args: Any, **given: Any) -> list[Row]:
        assert OF_ATTEMPT in text
        return guarded(self, text.replace(OF_ATTEMPT, ""), *args, **given)

    return [(Subscribing, "_guarded", unguarded)]


def pool_expired_at_get() -> list[Change]:
    """The other members of a pool lose a message as soon as one of them has it, not when that one has done it."""
    take = Subscribing.take

    @unit
    def take_alone(
        self: Subscribing,
        subscriber: str,
        holder: bytes,
        limit: int,
        now: int,
        *,
        without: Collection[bytes] = (),
        start: bool = False,
    ) -> list[Taken]:
        found = take(self, subscriber, holder, limit, now, without=without, start=start)
        handles = [one.ticket.handle for one in found]
        self._write(sql.EXPIRE_MATES, sub=self._subscribers[subscriber], handles=handles, now=now)
        self._rephase(handles)
        return found

    return [(Subscribing, "take", take_alone)]


def recovery_taken_literally() -> list[Change]:
    """Steps 1 to 5 of document 003 as they are written: a child follows its parent's state, and what is held is freed."""

    def by_parents_state(self: Recovery, attempt: str, _what: str, _done: Recovered, _now: int) -> bool:
        name = AttemptName.decode(attempt)
        view = self._queues[name.queue].view(name.ticket.handle)
        return view is not None and view.subscribers[0].state in ENDED

    return [(Recovery, "_outcome_of", by_parents_state), (Recovery, "_settled", lambda self, *_: False)]


def decision_not_inserted() -> list[Change]:
    """What is prepared is finished by the outcome that stands, without writing (aborted) where there is none."""
    settle = PostgresqlAttempts.settle

    def look(self: PostgresqlAttempts, attempt: str, *, committed: bool, now: int) -> bool:
        if committed:
            return settle(self, attempt, committed=True, now=now)
        asked = "select committed from relay_attempt where attempt = %s"
        row = self._connection.execute(asked, (attempt,)).fetchone()
        return row is not None and bool(row[0])

    return [(PostgresqlAttempts, "settle", look)]


def handlers_may_commit() -> list[Change]:
    """What a handler writes with has a commit, as a driver's connection."""
    return [(LeftToTheRelay, "commit", lambda self: self.finish())]


def behind_the_end() -> list[Change]:
    """A statement runs behind the end of the transaction that the relay has begun."""
    return [(SqliteDesk, "_refuse_if_ended", lambda self: None)]


def returned_unawaited() -> list[Change]:
    """What a handler returns says nothing."""
    return [(module, "check_returned", lambda returned: None) for module in (running, coroutines)]


QUEUE_REMOVALS: Final[dict[str, Callable[[], list[Change]]]] = {
    removal.__name__: removal
    for removal in (
        attempt_token_ignored,
        pool_expired_at_get,
        recovery_taken_literally,
        decision_not_inserted,
        handlers_may_commit,
        behind_the_end,
        returned_unawaited,
    )
}
