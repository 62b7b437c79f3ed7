"""What publishers, operators and recovery do to messages in a database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from typing import Final

from relay.message.queue_headers import PRIORITY_MAX
from relay.queue.message import Audience, NewMessage, PutAnswer
from relay.queue.port import StoreAway, StoreFull
from relay.queue.receipt import (
    Headers,
    check,
    check_priority,
    check_subscribers,
    edited,
    received,
    size_of,
)
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import sql_text as sql
from relay.queue.stores.sql_base import SqlBase, once, too_large
from relay.queue.stores.sql_schema import Shape
from relay.queue.stores.sql_session import Arriving, Given, Repeated, Row, Seat, unit
from relay.queue.stores.sql_values import headers_of, headers_text

LOOKED_UP_MAX: Final = 8
"""Each time what was there ended before it could be found; more often is not believed."""


class Publishing(SqlBase):
    """The publishers' side."""

    @unit
    def put(self, messages: Sequence[NewMessage], now: int, *, reveal: bool = True) -> list[PutAnswer]:
        """Store messages. Hardly any is a repeat, so they are looked for only after the index has refused one."""
        messages = self._received(messages)
        for new in messages:
            check(self.settings, new)
        given = self._with_seats(messages)
        fresh, known = given, dict[tuple[str, str], int]()
        for _ in range(LOOKED_UP_MAX):
            try:
                handles = self._store(fresh, now, reveal)
            except Repeated:
                # Taken back to the savepoint: retry without what is there.
                found = self._run(sql.FIND_LIVE, ids=[new.id for new in messages])
                known = {(publisher, id_): handle for publisher, id_, handle in found}
                fresh = _first_of_each(given, known)
                continue
            return _answers(messages, fresh, handles, known)
        raise StoreAway(f"queue {self.settings.name!r}: the same messages come and end over and over: try again")

    def _received(self, messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
        """Return the messages as they are kept."""
        return received(messages)

    def _with_seats(self, messages: Sequence[NewMessage]) -> Given:
        own: dict[Audience | None, Sequence[Seat]] = {None: self._seats}
        for new in messages:
            if new.audience is not None and new.audience not in own:
                own[new.audience] = self._seats_in(new.audience)
        return [(new, own[new.audience]) for new in messages]

    def _store(self, fresh: Given, now: int, reveal: bool) -> Sequence[int]:
        """Insert messages and return their handles; raises Repeated, and nothing is inserted, if one is there."""
        if not fresh:
            return ()
        with self.session.unit():
            handles = self.session.handles(self._queue, len(fresh))
            self.session.arrive(Arriving(self._queue, handles, fresh, now, self.settings.ttl_ms, reveal))
            self.session.tally(self._queue, len(fresh), 0)
            bound = self.settings.waiting_max
            if self.waiting() > bound:
                raise StoreFull(
                    f"queue {self.settings.name!r} would hold more than {bound} messages that wait: put later, or raise its bound"
                )
            self.session.tell(self.settings.name)
        return handles

    def waiting(self) -> int:
        """Return how many messages are PUT or REVEALED; other transactions that are open do not count."""
        return self.session.tallied(self._queue)[0]

    @unit
    def reveal(self, handles: Sequence[int], now: int, to: Collection[str] | None = None) -> list[bool]:
        """Show messages to their audience, or to the subscribers named."""
        check_subscribers(self.settings, to or ())
        found = self._lock_open(handles)
        decided = {h: row for h, row in found.items() if row[1] != PublisherState.PUT or row[2] is None}
        return once(handles, self._show(decided, now, to))

    def _show(self, found: dict[int, Row], now: int, to: Collection[str] | None = None) -> set[int]:
        """Reveal these rows of ``LOCK_OPEN``; return the handles of which somebody sees more than before."""
        handles = sorted(found)
        if to is None:
            shown = {row[0] for row in self._run(sql.SHOW_TURN, handles=handles)}
        else:
            subscribers = [self._subscribers[name] for name in to]
            shown = {row[0] for row in self._run(sql.SHOW_SOME, handles=handles, subs=subscribers)}
        revealed = [handle for handle in sorted(shown) if found[handle][1] == PublisherState.PUT]
        if revealed:
            self._write(sql.REVEAL_OPEN, handles=revealed)
            self._write(sql.REVEAL_MESSAGE, handles=revealed, now=now)
        self._rephase(sorted(shown))
        if shown:
            self.session.tell(self.settings.name)
        return shown

    @unit
    def reveal_due(self, now: int, limit: int, *, held: Collection[str] = ()) -> int:
        """Reveal what was delayed."""
        due = [row[0] for row in self._run(sql.FIND_DUE, now=now, limit=limit, held=sorted(held))]
        found = self._lock_open(due)
        # Another writer may have been here since they were found.
        still = {h: row for h, row in found.items() if row[1] == PublisherState.PUT and row[2] is None}
        return len(self._show(still, now))

    @unit
    def accept(self, handles: Sequence[int], now: int) -> list[bool]:
        """Forget the attempt of children."""
        found = self._lock_open(handles)
        mine = {h: row for h, row in found.items() if row[1] == PublisherState.PUT and row[2] is not None}
        self._write(sql.FORGET_OPEN, handles=sorted(mine))
        self._write(sql.FORGET_MESSAGE, handles=sorted(mine))
        self._show({h: row for h, row in mine.items() if row[3] is None or row[3] <= now}, now)
        self._rephase(sorted(mine))  # a delayed one keeps its place no longer
        return once(handles, mine)

    @unit
    def withdraw(self, handles: Sequence[int], now: int) -> list[bool]:
        """End messages for whoever has not taken them."""
        found = self._lock_open(handles)
        self._end(sql.WITHDRAW, sorted(found), now)
        return once(handles, found)

    @unit
    def discard(self, handles: Sequence[int], now: int) -> list[bool]:
        """End children of an aborted attempt."""
        found = self._lock_open(handles)
        mine = [h for h, row in sorted(found.items()) if row[1] == PublisherState.PUT and row[2] is not None]
        self._end(sql.DISCARD, mine, now)
        return once(handles, mine)

    def _end(self, how: str, handles: list[int], now: int) -> None:
        if not handles:
            return
        self._write(sql.CLOSE, handles=handles)
        self._write(how, handles=handles, now=now)
        rows = self._run(sql.EXPIRE_ALL, handles=handles, now=now)
        self._rephase(sorted({handle for handle, shape in rows if shape & Shape.POOL}))
        self.session.tally(self._queue, -len(handles), len(handles))

    @unit
    def republish(self, handle: int, subscriber: str, now: int, *, even_done: bool = False) -> bool:
        """Give a message to one subscriber again."""
        del now  # the publisher's time of revealing stays the first one
        if self.settings.group_of(subscriber) is None:
            return False
        locked = self._lock_open([handle])
        self._run(sql.LOCK_MESSAGES, handles=[handle])  # what is found stays as it is: not trimmed, not republished by another
        number = self._subscribers.get(subscriber)
        rows = [] if number is None else self._run(sql.FIND_DELIVERY, handle=handle, sub=number)
        if not rows:
            return False
        _, state, done_at, ended, publisher, id_ = rows[0]
        if state != SubscriberState.JOURNALLED or ended or (done_at is not None and not even_done):
            return False
        if locked and locked[handle][1] != PublisherState.REVEALED:
            return False
        if not locked:
            if not self._run(sql.REOPEN, handle=handle, publisher=publisher, id=id_):
                return False
            self._write(sql.NOT_OVER, handle=handle)
            self.session.tally(self._queue, 1, -1)
        self._write(sql.REPUBLISH, handle=handle, sub=number)
        self._rephase([handle])
        self.session.tell(self.settings.name)
        return True

    @unit
    def prioritise(self, handles: Sequence[int], priority: int) -> list[bool]:
        """Set the priority of messages that are PUT or REVEALED."""
        check_priority(priority, "a message")
        found = sorted(self._lock_open(handles))
        self._write(sql.PRIORITISE_MESSAGE, handles=found, priority=priority)
        self._write(sql.PRIORITISE_DELIVERY, handles=found, rank=PRIORITY_MAX - priority)
        return [handle in found for handle in handles]

    @unit
    def edit(self, handle: int, value: bytes | None, who: str, reason: str, now: int) -> bool:
        """Replace the value of a message that nobody has ever taken."""
        if not self._lock_open([handle]) or self._run(sql.EVER_TAKEN, handle=handle):
            return False
        key, before, text = self._run(sql.READ_CONTENT, handle=handle)[0]
        kept, digest = self._before_edit(headers_of(text))
        headers = (*kept, edited(before, who, reason, now, digest=digest))
        size = size_of(key, value, headers)
        if size > self.settings.message_bytes:
            raise too_large(self.settings, size)
        self._write(sql.EDIT, handle=handle, value=value, headers=headers_text(headers))
        return True

    def _before_edit(self, headers: Headers) -> tuple[Headers, str | None]:
        """Return the headers that an edit keeps, and the digest of a value that lies elsewhere."""
        return headers, None


def _first_of_each(given: Given, known: dict[tuple[str, str], int]) -> Given:
    """Return what is neither known nor said before in the same call."""
    fresh: list[tuple[NewMessage, Sequence[Seat]]] = []
    said = set(known)
    for new, audience in given:
        name = (new.publisher, new.id)
        if new.parents or name not in said:
            fresh.append((new, audience))
        if not new.parents:
            said.add(name)
    return fresh


def _answers(
    messages: Sequence[NewMessage], fresh: Given, handles: Sequence[int], known: dict[tuple[str, str], int]
) -> list[PutAnswer]:
    if len(fresh) == len(messages):
        return list(map(PutAnswer, handles, repeat(False)))
    drawn = {id(new): handle for (new, _), handle in zip(fresh, handles, strict=True)}
    answers = []
    for new in messages:
        handle = drawn.pop(id(new), None)
        answers.append(PutAnswer(known[new.publisher, new.id] if handle is None else handle, repeat=handle is None))
        if not new.parents:
            known.setdefault((new.publisher, new.id), answers[-1].handle)
    return answers
