"""The reference: a queue kept as a plain book and read from end to end; every store must answer as this one does.

Its questions are in `queue_pages.py`, one message of it in `queue_entry.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from relay.queue.message import MessageView, NewMessage, PutAnswer, Taken, Ticket
from relay.queue.port import Holder, Refused, Retired, StoreFull
from relay.queue.receipt import (
    audience_of,
    check,
    check_priority,
    check_subscribers,
    edited,
    received,
    size_of,
)
from relay.queue.states import TAKEN, Event, IllegalTransition, PublisherState, SubscriberState
from tests.contracts.queue_entry import Entry, Row, all_journalled
from tests.contracts.queue_pages import ENDED, LIVE, BookPages

P, S, E = PublisherState, SubscriberState, Event
Command = TypeVar("Command", bound=Callable[..., Any])


def writes(method: Command) -> Command:
    """Refuse the command once the queue has moved to another store."""

    @wraps(method)
    def guarded(self: QueueBook, *args: object, **over: object) -> object:
        if self.retired:
            raise Retired(f"queue {self.settings.name!r} has moved to another store")
        return method(self, *args, **over)

    return cast("Command", guarded)


class QueueBook(BookPages):
    """The in-memory reference store; nothing in it is fast."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = copy.deepcopy((self._entries, self._last, self._holders, self._outcomes))
        try:
            yield
        except BaseException:
            self._entries, self._last, self._holders, self._outcomes = before
            raise

    def close(self) -> None:
        pass

    # What publishers do -------------------------------------------------------------------------------------------

    @writes
    def put(self, messages: Sequence[NewMessage], now: int, *, reveal: bool = True) -> list[PutAnswer]:
        messages = received(messages)
        with self.transaction():
            for new in messages:
                check(self.settings, new)
            answers = [self._put(new, now, reveal) for new in messages]
            if not all(answer.repeat for answer in answers) and self.waiting() > self.settings.waiting_max:
                raise StoreFull(f"queue {self.settings.name!r} is full")
            return answers

    def _put(self, new: NewMessage, now: int, reveal: bool) -> PutAnswer:
        first = None if new.parents else self._live(new.publisher, new.id)
        if first is not None:
            return PutAnswer(first.handle, repeat=True)
        self._last += 1
        audience = audience_of(self.settings, new)
        ttl = self.settings.ttl_ms if new.ttl_ms is None else new.ttl_ms
        entry = Entry(
            handle=self._last,
            new=new,
            in_order=audience.in_order,
            rows=[Row(member, group.name) for group in audience.groups for member in group.members],
            put_at=now,
            value=new.value,
            headers=new.headers,
            priority=new.priority,
            attempt=new.attempt,
            reveal_at=now + new.delay_ms if new.delay_ms else None,
            expires_at=None if ttl is None else now + ttl,
        )
        self._entries[entry.handle] = entry
        if reveal and entry.reveal_at is None and entry.attempt is None:
            self._show(entry, None, now)
        return PutAnswer(entry.handle, repeat=False)

    def _live(self, publisher: str, id_: str) -> Entry | None:
        found = (entry for entry in self._entries.values() if entry.state in LIVE and not entry.new.parents)
        return next(
            (entry for entry in found if (entry.new.publisher, entry.new.id) == (publisher, id_)), None
        )

    @writes
    def reveal(self, handles: Sequence[int], now: int, to: Collection[str] | None = None) -> list[bool]:
        check_subscribers(self.settings, to or ())
        return self._each(handles, LIVE, lambda entry: not entry.is_undecided() and self._show(entry, to, now))

    def _show(self, entry: Entry, to: Collection[str] | None, now: int) -> bool:
        rows = entry.turn() if to is None else [row for row in entry.rows if row.subscriber in to]
        hidden = [row for row in rows if row.state is S.AVAILABLE and not row.revealed]
        for row in hidden:
            row.revealed = True
        if hidden and entry.state is P.PUT:
            entry.move(E.REVEAL, now)
        return bool(hidden)

    @writes
    def reveal_due(self, now: int, limit: int, *, held: Collection[str] = ()) -> int:
        waiting = [
            entry
            for entry in self._entries.values()
            if entry.state is P.PUT and entry.attempt is None and entry.new.publisher not in held
        ]
        kept: dict[str, int] = {}
        for entry in waiting:
            if entry.reveal_at is None:
                kept[entry.new.publisher] = min(entry.handle, kept.get(entry.new.publisher, entry.handle))
        due = [entry for entry in waiting if entry.reveal_at is not None and entry.reveal_at <= now]
        due = [entry for entry in due if entry.handle <= kept.get(entry.new.publisher, entry.handle)]
        return sum(self._show(entry, None, now) for entry in due[:limit])

    @writes
    def accept(self, handles: Sequence[int], now: int) -> list[bool]:
        def forget(entry: Entry) -> bool:
            if entry.attempt is None:
                return False
            entry.attempt = None
            if entry.reveal_at is None or entry.reveal_at <= now:
                self._show(entry, None, now)
            return True

        return self._each(handles, (P.PUT,), forget)

    @writes
    def withdraw(self, handles: Sequence[int], now: int) -> list[bool]:
        return self._each(handles, LIVE, lambda entry: self._end(entry, E.WITHDRAW, now))

    @writes
    def discard(self, handles: Sequence[int], now: int) -> list[bool]:
        return self._each(
            handles, (P.PUT,), lambda entry: entry.attempt is not None and self._end(entry, E.DISCARD, now)
        )

    def _end(self, entry: Entry, event: Event, now: int) -> bool:
        entry.move(event, now)
        self._expire_rows(entry, entry.rows, now)
        return True

    @writes
    def republish(self, handle: int, subscriber: str, now: int, *, even_done: bool = False) -> bool:
        entry = self._entries.get(handle)
        row = entry.row(subscriber) if entry else None
        if entry is None or row is None or row.state is not S.JOURNALLED or self.settings.group_of(subscriber) is None:
            return False
        if any(S.DONE in mate.times for mate in entry.rows if mate.group == row.group) and not even_done:
            return False
        if entry.state is P.JOURNALLED and (
            entry.new.parents or self._live(entry.new.publisher, entry.new.id) is None
        ):
            entry.move(E.REPUBLISH, entry.times[P.REVEALED])
            del entry.times[P.JOURNALLED]
        elif entry.state is not P.REVEALED:
            return False
        row.move(E.REPUBLISH, now)
        row.revealed, row.failures, row.again_at, row.cause = True, 0, None, None
        row.times.clear()
        return True

    @writes
    def prioritise(self, handles: Sequence[int], priority: int) -> list[bool]:
        check_priority(priority, "a message")

        def set_priority(entry: Entry) -> bool:
            entry.priority = priority
            return True

        return self._each(handles, LIVE, set_priority)

    @writes
    def edit(self, handle: int, value: bytes | None, who: str, reason: str, now: int) -> bool:
        def replace(entry: Entry) -> bool:
            if any(row.attempt for row in entry.rows):
                return False
            headers = (*entry.headers, edited(entry.value, who, reason, now))
            if size_of(entry.new.key, value, headers) > self.settings.message_bytes:
                raise Refused(f"message {handle} would be too large")
            entry.value, entry.headers = value, headers
            return True

        return self._each([handle], LIVE, replace)[0]

    def _each(
        self, handles: Sequence[int], states: tuple[PublisherState, ...], change: Callable[[Entry], bool]
    ) -> list[bool]:
        found = [self._entries.get(handle) for handle in handles]
        return [entry is not None and entry.state in states and change(entry) for entry in found]

    # What subscribers do ------------------------------------------------------------------------------------------

    @writes
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
        check_subscribers(self.settings, [subscriber])
        if holder not in self._holders:
            raise Refused("this worker was not entered, or it was recovered: it must stop")
        offered: list[tuple[int, int, Entry, Row]] = []
        for lane, mine in self._lanes(subscriber, now).items():
            waiting = [(entry, row) for entry, row in mine if row.state is S.AVAILABLE and row.revealed]
            if waiting and lane[1] not in without:
                priority = max(entry.priority for entry, _ in waiting)
                given = self._given(lane, mine, holder, now)
                offered += [(-priority, entry.handle, entry, row) for entry, row in given]
        offered.sort(key=lambda offer: offer[:2])
        taken = [self._hand_over(entry, row, holder, now) for _, _, entry, row in offered[:limit]]
        if start:
            self.start(subscriber, [one.ticket for one in taken], now)
        return taken

    def _lanes(self, subscriber: str, now: int) -> dict[tuple[str, bytes | int], list[tuple[Entry, Row]]]:
        """Return what stands in the lanes of this subscriber's groups, by handle: what its group has or may take."""
        lanes: dict[tuple[str, bytes | int], list[tuple[Entry, Row]]] = {}
        for entry in self._entries.values():
            row = entry.row(subscriber)
            if row is None:
                continue
            open_to = entry.state is P.REVEALED and not entry.expired(now)
            undecided = entry.state is P.PUT and entry.attempt is not None and not entry.expired(now)
            mates = [mate for mate in entry.rows if mate.group == row.group]
            if undecided or any(
                mate.state in TAKEN or (open_to and mate.state is S.AVAILABLE and mate.revealed)
                for mate in mates
            ):
                lane = (row.group, entry.handle if entry.new.lane is None else entry.new.lane)
                lanes.setdefault(lane, []).append((entry, row))
        return lanes

    def _given(
        self, lane: tuple[str, bytes | int], mine: list[tuple[Entry, Row]], holder: bytes, now: int
    ) -> list[tuple[Entry, Row]]:
        mates = [(entry.handle, mate) for entry, row in mine for mate in entry.rows if mate.group == lane[0]]
        taken = [(handle, mate) for handle, mate in mates if mate.state in TAKEN]
        if any(mate.holder != holder for _, mate in taken):
            return []
        newest = max((handle for handle, _ in taken), default=0)
        given = []
        for entry, row in mine:
            if row.state in TAKEN:
                continue
            may = row.state is S.AVAILABLE and row.revealed and not entry.blocked(row)
            if not may or entry.handle < newest or (row.again_at is not None and now < row.again_at <= now + self.settings.wait_max_ms):
                break
            given.append((entry, row))
        return given

    def _hand_over(self, entry: Entry, row: Row, holder: bytes, now: int) -> Taken:
        row.move(E.GET, now)
        row.move(E.FETCH, now)
        row.attempt += 1
        row.holder, row.again_at = holder, None
        new = entry.new
        return Taken(
            Ticket(entry.handle, row.attempt),
            new.publisher,
            new.id,
            new.key,
            entry.value,
            entry.headers,
            new.subject,
            new.lane,
            entry.priority,
            row.failures,
            entry.put_at,
            new.parents,
            row.group,
            sum(other.group == row.group for other in entry.rows) > 1,
        )

    @writes
    def start(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        return [self._with(subscriber, ticket, E.START, now) is not None for ticket in tickets]

    @writes
    def finish(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        return [self._finish(subscriber, ticket, now) for ticket in tickets]

    def _finish(self, subscriber: str, ticket: Ticket, now: int) -> bool:
        found = self._with(subscriber, ticket, E.FINISH, now)
        if found is None:
            return False
        entry, row = found
        row.holder = None
        row.move(E.JOURNAL, now)
        self._expire_rows(entry, [mate for mate in entry.rows if mate.group == row.group], now)
        self._go_on(entry, now)
        return True

    @writes
    def refuse(self, subscriber: str, causes: Sequence[tuple[Ticket, str]], now: int) -> list[bool]:
        return [self._refuse(subscriber, ticket, cause, now) for ticket, cause in causes]

    def _refuse(self, subscriber: str, ticket: Ticket, cause: str, now: int) -> bool:
        found = self._with(subscriber, ticket, E.REFUSE, now)
        if found is None:
            return False
        entry, row = found
        row.holder, row.cause = None, cause
        row.move(E.JOURNAL, now)
        self._go_on(entry, now)
        return True

    @writes
    def free(
        self,
        subscriber: str,
        tickets: Sequence[Ticket],
        now: int,
        *,
        again_at: int | None = None,
        failed: bool = False,
    ) -> list[bool]:
        return [self._free(subscriber, ticket, now, again_at, failed) for ticket in tickets]

    def _free(self, subscriber: str, ticket: Ticket, now: int, again_at: int | None, failed: bool) -> bool:
        found = self._with(subscriber, ticket, E.FREE, now)
        if found is None:
            return False
        entry, row = found
        row.holder, row.again_at = None, again_at
        row.failures += failed
        if entry.state is P.UNAVAILABLE:
            self._expire_rows(entry, [row], now)
        return True

    def _with(self, subscriber: str, ticket: Ticket, event: Event, now: int) -> tuple[Entry, Row] | None:
        """Let the event happen to what the ticket holds; None, and nothing changed, where the guard does not hold."""
        entry = self._entries.get(ticket.handle)
        row = entry.row(subscriber) if entry else None
        if entry is None or row is None or row.attempt != ticket.attempt or row.state not in TAKEN:
            return None
        try:
            row.move(event, now)
        except IllegalTransition:
            return None
        return entry, row

    @writes
    def expire(self, now: int, limit: int) -> int:
        left = limit
        for entry in self._entries.values():
            if entry.state is P.REVEALED and entry.expired(now):
                rows = [row for row in entry.rows if row.state is S.AVAILABLE][:left]
                left -= self._expire_rows(entry, rows, now)
                self._go_on(entry, now)
        return limit - left

    @writes
    def expire_now(self, handles: Sequence[int], now: int, subscriber: str | None = None) -> list[bool]:
        named = [self._entries[handle] for handle in handles if handle in self._entries]
        if subscriber is not None and not any(entry.state in LIVE and entry.row(subscriber) for entry in named):
            check_subscribers(self.settings, [subscriber])

        def expire(entry: Entry) -> bool:
            rows = [row for row in entry.rows if subscriber in (None, row.subscriber)]
            changed = self._expire_rows(entry, rows, now)
            self._go_on(entry, now)
            return changed > 0

        return self._each(handles, (P.REVEALED,), expire)

    def _expire_rows(self, entry: Entry, rows: Iterable[Row], now: int) -> int:
        available = [row for row in rows if row.state is S.AVAILABLE]
        for row in available:
            row.move(E.EXPIRE, now)
            row.move(E.JOURNAL, now)
        return len(available)

    def _go_on(self, entry: Entry, now: int) -> None:
        """Reveal the next group in order; journal the message when every subscriber has."""
        if entry.state is P.REVEALED and all_journalled(entry.rows):
            entry.move(E.JOURNAL, now)
        elif entry.in_order and all_journalled(entry.groups()[0]):
            for row in entry.turn():
                row.revealed = row.revealed or row.state is S.AVAILABLE

    # Holders and recovery -----------------------------------------------------------------------------------------

    @writes
    def enter(self, holder: Holder) -> None:
        self._holders[holder.id] = holder

    @writes
    def beat(self, holder: bytes) -> bool:
        known = self._holders.get(holder)
        if known is not None:
            self._holders[holder] = known._replace(beats=known.beats + 1)
        return known is not None

    @writes
    def leave(self, holder: bytes) -> bool:
        if self.held(holder):
            return False
        self._holders.pop(holder, None)
        return True

    @writes
    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        return self._outcomes.setdefault(attempt, committed)

    @writes
    def forget(self, attempts: Sequence[str]) -> None:
        for attempt in attempts:
            if self._outcomes.get(attempt):
                del self._outcomes[attempt]

    # The journal --------------------------------------------------------------------------------------------------

    @writes
    def trim(self, handles: Sequence[int]) -> int:
        found = [self._entries.get(handle) for handle in handles]
        gone = [entry for entry in found if entry and entry.state in ENDED and not entry.with_a_worker()]
        for entry in gone:
            del self._entries[entry.handle]
        return len(gone)

    # Moving to another store --------------------------------------------------------------------------------------

    def retire(self) -> None:
        self.retired = True

    def reinstate(self) -> None:
        self.retired = False

    def adopt(
        self, messages: Sequence[MessageView], *, uuid: str, outcomes: Sequence[tuple[str, bool]] = ()
    ) -> None:
        self.uuid = uuid
        self._outcomes.update(outcomes)
        self._entries.update({view.handle: Entry.adopted(view) for view in messages})
        self._entries = dict(sorted(self._entries.items()))
        self._last = max(self._last, *self._entries, 0)
