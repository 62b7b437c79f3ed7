"""What subscribers and their workers do to messages in a database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from relay.queue.message import Taken, Ticket
from relay.queue.port import Child, Holder, Refused
from relay.queue.receipt import check_subscribers
from relay.queue.states import TAKEN, PublisherState, SubscriberState
from relay.queue.stores import sql_text as sql
from relay.queue.stores.sql_base import SqlBase, once
from relay.queue.stores.sql_schema import Shape
from relay.queue.stores.sql_session import Row, unit
from relay.queue.stores.sql_taking import Choice
from relay.queue.stores.sql_values import taken

_TAKEN = frozenset(map(int, TAKEN))
COUNTED_MIN: Final = 16
"""For fewer messages to take back what was counted costs more than to have them returned."""


class _Fewer(Exception):
    """Not all that were asked for were met."""


class Subscribing(SqlBase):
    """The subscribers' side. Whoever takes locks its groups until the unit ends, so take in a unit of its own."""

    @unit
    def take(
        self,
        subscriber: str,
        holder: bytes,
        limit: int,
        now: int,
        *,
        without: Collection[bytes] = (),
        start: bool = False,
    ) -> list[Taken]:
        """Take what the lanes give."""
        number = self._subscriber(subscriber)
        if not self._run(sql.KNOWN_HOLDER, holder=holder):
            raise Refused("this worker was not entered, or it was recovered: it must stop")
        self.session.lock_groups(number)
        latest = now + self.settings.wait_max_ms
        chosen = Choice(self.session, self._queue, number, holder, limit, now, latest, without).candidates()
        if not chosen:
            return []
        handles = self._together([candidate.handle for candidate in chosen])
        text = sql.TAKE_AND_START if start else sql.TAKE
        if self._write(text, sub=number, handles=handles, holder=holder, now=now) < len(chosen):
            # Another writer ended some of them since they were read.
            mine = {row[0] for row in self._run(sql.STILL_MINE, sub=number, handles=handles, holder=holder)}
            chosen = [candidate for candidate in chosen if candidate.handle in mine]
        self._rephase(sorted(candidate.handle for candidate in chosen if candidate.shape & Shape.POOL))
        content = {row[0]: row for row in self._run(sql.READ_TAKEN, handles=handles)}
        groups = self._group_names({one.group for one in chosen})
        found = [
            taken(
                content[one.handle],
                one.attempt + 1,
                one.failures,
                groups[one.group],
                in_pool=bool(one.shape & Shape.POOL),
            )
            for one in chosen
        ]
        for one in found:
            self._check_value(one.value, one.headers)
        return found

    def _guarded(self, text: str, subscriber: str, tickets: Sequence[Ticket], **given: Any) -> list[Row]:
        """Write what still has this attempt and a state that allows it; return (handle, attempt, shape) of these."""
        given["sub"] = self._subscribers.get(subscriber)
        by_attempt: dict[int, list[int]] = {}
        for handle, attempt in tickets:
            by_attempt.setdefault(attempt, []).append(handle)
        found: list[Row] = []
        for attempt, asked in by_attempt.items():
            handles = self._together(asked)
            if self._meets_all(text, len(asked), handles=handles, attempt=attempt, **given):
                found += [(handle, attempt, 0) for handle in asked]
                continue
            rows = self._run(text, handles=handles, attempt=attempt, **given)
            found += [(handle, attempt, shape) for handle, shape in rows]
        return found

    def _meets_all(self, text: str, expected: int, **given: Any) -> bool:
        """Write if all that is asked for may be written and nobody else has part in it; else nothing: ask for each one.

        Nearly always it is so, and a row that is returned costs as much as the write.
        """
        if not self.session.counts_cheaply or expected < COUNTED_MIN or len(self._seats) > 1:
            return False
        try:
            with self.session.unit():
                if self._write(sql.counted(text), **given) < expected:
                    raise _Fewer
        except _Fewer:
            # Taken back to the savepoint: retry, one by one.
            return False
        return True

    @unit
    def start(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        """FETCHED -> IN_PROCESS."""
        return _answers(tickets, self._guarded(sql.START, subscriber, tickets, now=now))

    @unit
    def finish(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        """DONE and JOURNALLED; the rest of a pool expires."""
        rows = self._guarded(sql.FINISH, subscriber, tickets, now=now)
        pools = _pools(rows)
        if pools:
            self._lock_open(pools)
            self._write(sql.EXPIRE_MATES, sub=self._subscribers[subscriber], handles=pools, now=now)
            self._rephase(pools)
        self._go_on([(handle, shape) for handle, _, shape in rows], now)
        return _answers(tickets, rows)

    @unit
    def refuse(self, subscriber: str, causes: Sequence[tuple[Ticket, str]], now: int) -> list[bool]:
        """UNUSABLE and JOURNALLED; the rest of a pool is free again."""
        tickets = [ticket for ticket, _ in causes]
        rows = self._guarded(sql.REFUSE, subscriber, tickets, now=now)
        first = dict(reversed(causes))
        by_cause: dict[str, list[int]] = {}
        for handle, attempt, _ in rows:
            by_cause.setdefault(first[Ticket(handle, attempt)], []).append(handle)
        for cause, handles in by_cause.items():
            self._write(sql.CAUSE, sub=self._subscribers[subscriber], handles=handles, cause=cause)
        if pools := _pools(rows):
            self._lock_open(pools)
            self._rephase(pools)
        self._go_on([(handle, shape) for handle, _, shape in rows], now)
        return _answers(tickets, rows)

    @unit
    def free(
        self,
        subscriber: str,
        tickets: Sequence[Ticket],
        now: int,
        *,
        again_at: int | None = None,
        failed: bool = False,
    ) -> list[bool]:
        """Give back; a withdrawn message ends instead."""
        still_open = self._lock_open([ticket.handle for ticket in tickets])
        rows = self._guarded(sql.FREE, subscriber, tickets, again_at=again_at, failed=int(failed))
        if rows:
            handles = [row[0] for row in rows]
            withdrawn = [handle for handle in handles if handle not in still_open]
            self._run(sql.EXPIRE_ONE, sub=self._subscribers[subscriber], handles=withdrawn, now=now)
            self._rephase(handles)
            self.session.tell(self.settings.name)
        return _answers(tickets, rows)

    @unit
    def expire(self, now: int, limit: int) -> int:
        """End what is past its time."""
        found = self._run(sql.FIND_EXPIRED, now=now, limit=limit)
        self._lock_open(sorted({handle for handle, _ in found}))
        by_subscriber: dict[int, list[int]] = {}
        for handle, number in found:
            by_subscriber.setdefault(number, []).append(handle)
        rows: list[Row] = []
        for number, handles in sorted(by_subscriber.items()):
            rows += self._run(sql.EXPIRE_ONE, sub=number, handles=handles, now=now)
        self._after_expiry(rows, now)
        return len(rows)

    @unit
    def expire_now(self, handles: Sequence[int], now: int, subscriber: str | None = None) -> list[bool]:
        """End what nobody has taken, at a person's word."""
        locked = self._lock_open(handles)
        if subscriber is not None and self.settings.group_of(subscriber) is None:
            meant = self._run(sql.HOLDS, sub=self._subscribers.get(subscriber), handles=sorted(locked))
            check_subscribers(self.settings, [] if meant else [subscriber])
        revealed = [handle for handle, row in sorted(locked.items()) if row[1] == PublisherState.REVEALED]
        if subscriber is None:
            rows = self._run(sql.EXPIRE_ALL, handles=revealed, now=now)
        else:
            rows = self._run(sql.EXPIRE_ONE, sub=self._subscribers[subscriber], handles=revealed, now=now)
        self._after_expiry(rows, now)
        return once(handles, [row[0] for row in rows])

    def _after_expiry(self, rows: Sequence[Row], now: int) -> None:
        self._rephase(sorted({handle for handle, shape in rows if shape & Shape.POOL}))
        self._go_on(rows, now)

    # Holders and outcomes -----------------------------------------------------------------------------------------

    @unit
    def enter(self, holder: Holder) -> None:
        """Make a worker known."""
        self._write(sql.ENTER, **holder._asdict())

    @unit
    def beat(self, holder: bytes) -> bool:
        """Count one more beat."""
        return self._write(sql.BEAT, holder=holder) > 0

    @unit
    def leave(self, holder: bytes) -> bool:
        """Forget a worker that holds nothing."""
        self._run(sql.LOCK_HOLDER, holder=holder)
        # Read when nobody takes for it any more, which the lock has waited for.
        if self._run(sql.HELD, holder=holder):
            return False
        self._write(sql.LEAVE, holder=holder)
        return True

    def holders(self) -> list[Holder]:
        """Return every known worker."""
        return [Holder(*row) for row in self._run(sql.HOLDERS)]

    def held(self, holder: bytes) -> list[Ticket]:
        """Return what a worker has."""
        return [Ticket(*row) for row in self._run(sql.HELD, holder=holder)]

    def holds(self, subscriber: str, tickets: Sequence[Ticket]) -> list[SubscriberState | None]:
        """Return what became of attempts."""
        number = self._subscribers.get(subscriber)
        if number is None:
            return [None] * len(tickets)
        found = {row[0]: row for row in self._run(sql.HOLDS, sub=number, handles=[t.handle for t in tickets])}
        return [_held_state(found.get(ticket.handle), ticket.attempt) for ticket in tickets]

    @unit
    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        """Write an outcome unless there is one; return the one that stands."""
        self._write(sql.SETTLE, attempt=attempt, committed=int(committed), now=now)
        return bool(self._run(sql.OUTCOME, attempt=attempt)[0][0])

    def outcome(self, attempt: str) -> bool | None:
        """Return an attempt's outcome."""
        rows = self._run(sql.OUTCOME, attempt=attempt)
        return bool(rows[0][0]) if rows else None

    def forget(self, attempts: Sequence[str]) -> None:
        """Let committed outcomes go."""
        self._write(sql.FORGET, attempts=list(attempts))

    def children(self, limit: int, *, after: int = 0) -> list[Child]:
        """Return what waits for an attempt's outcome."""
        return [Child(*row) for row in self._run(sql.CHILDREN, limit=limit, after=after)]


def _answers(tickets: Sequence[Ticket], rows: Sequence[Row]) -> list[bool]:
    if len(rows) == len(tickets):
        return [True] * len(tickets)
    left = {(handle, attempt) for handle, attempt, _ in rows}
    answers = []
    for ticket in tickets:
        answers.append(ticket in left)
        left.discard(ticket)
    return answers


def _pools(rows: Sequence[Row]) -> list[int]:
    return sorted(handle for handle, _, shape in rows if shape & Shape.POOL)


def _held_state(row: Row | None, attempt: int) -> SubscriberState | None:
    if row is None or row[1] != attempt:
        return None
    _, _, state, done_at, unusable_at = row
    if state in _TAKEN:
        return SubscriberState(state)
    if done_at is not None:
        return SubscriberState.DONE
    return SubscriberState.UNUSABLE if unusable_at is not None else None
