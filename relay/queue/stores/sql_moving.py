"""How a queue in a database moves to another store, and takes in what another store had."""

from __future__ import annotations

from collections.abc import Sequence

from relay.message.queue_headers import PRIORITY_MAX
from relay.queue.message import MessageView, SubscriberView
from relay.queue.states import PublisherState
from relay.queue.stores import sql_text as sql
from relay.queue.stores.lanes import lane_number
from relay.queue.stores.sql_base import SqlBase
from relay.queue.stores.sql_schema import Phase, Shape
from relay.queue.stores.sql_session import Row
from relay.queue.stores.sql_values import headers_text, parents_text

_LIVE = (PublisherState.PUT, PublisherState.REVEALED)
_ENDED = (PublisherState.UNAVAILABLE, PublisherState.DELETED)


class Moving(SqlBase):
    """Both ends of a move."""

    def retire(self) -> None:
        """Refuse every later write, for good; PostgreSQL waits for writers, who share the queue's row."""
        with self.session.unit():
            self._write(sql.RETIRE)

    def reinstate(self) -> None:
        """Take writes again."""
        with self.session.unit():
            self._write(sql.REINSTATE)

    def outcomes(self, *, after: str = "", limit: int = 1000) -> list[tuple[str, bool]]:
        """Return attempts with their outcomes, by name."""
        return [(name, bool(committed)) for name, committed in self._run(sql.OUTCOMES, after=after, limit=limit)]

    def adopt(self, messages: Sequence[MessageView], *, uuid: str, outcomes: Sequence[tuple[str, bool]] = ()) -> None:
        """Write messages of another store as they are."""
        with self.session.unit():
            handles = [message.handle for message in messages]
            there = self._run(sql.VIEW, handles=handles, value=0)
            self._count([PublisherState(row[3]) for row in there], -1)
            for text in (sql.CLOSE, sql.TRIM_DELIVERIES, sql.TRIM_MESSAGES):
                self._write(text, handles=handles)
            self.session.many(sql.ADOPT_MESSAGE, [self._message_row(message) for message in messages])
            live = [message for message in messages if message.state in _LIVE]
            self.session.many(sql.ADOPT_OPEN, [self._open_row(message) for message in live])
            self.session.many(sql.ADOPT_DELIVERY, self._delivery_rows(messages))
            self._rephase(handles)
            self._count([message.state for message in messages], 1)
            if handles:
                self.session.raise_handles(self._queue, max(handles))
            self.session.many(sql.ADOPT_OUTCOME, [(self._queue, name, int(committed)) for name, committed in outcomes])
            self._write(sql.RENAME, uuid=uuid)
        self.uuid = uuid

    def _count(self, states: Sequence[PublisherState], sign: int) -> None:
        live = sum(state in _LIVE for state in states)
        self.session.tally(self._queue, sign * live, sign * (len(states) - live))

    def _message_row(self, view: MessageView) -> Row:
        return (
            *(view.handle, self._queue, view.put_at, view.revealed_at, view.priority),
            *(view.publisher, view.id, view.key, view.value, view.lane),
            *(view.reveal_at, view.expires_at, view.attempt),
            headers_text(view.headers) if view.headers else None,
            view.subject,
            parents_text(view.parents) if view.parents else None,
            int(view.state) if view.state in _ENDED else 0,
            view.unavailable_at,
            view.deleted_at,
            view.journalled_at,
        )

    def _open_row(self, view: MessageView) -> Row:
        name = None if view.parents else view.id
        return (view.handle, self._queue, int(view.state), view.publisher, name, view.reveal_at, view.attempt)

    def _known(self, messages: Sequence[MessageView]) -> dict[str, int]:
        """Return the numbers of subscribers, also of those who are configured no more and still have messages.

        Not remembered from one call to the next: the transaction that made them known may be taken back.
        """
        names = {row.subscriber for message in messages for row in message.subscribers}
        if names <= self._subscribers.keys():
            return self._subscribers
        return self._numbers(sql.ADD_SUBSCRIBER, sql.FIND_SUBSCRIBERS, sorted(names))

    def _delivery_rows(self, messages: Sequence[MessageView]) -> list[Row]:
        """Return the rows of all messages; whom the queue does not know yet, it knows then."""
        known = self._known(messages)
        names = dict.fromkeys(row.group for message in messages for row in message.subscribers)
        groups = self._numbers(sql.ADD_GROUP, sql.FIND_GROUPS, names) if names else {}
        members = {(known[row.subscriber], groups[row.group]) for message in messages for row in message.subscribers}
        for subscriber, group in sorted(members):
            self._write(sql.ADD_MEMBER, sub=subscriber, grp=group)
        return [row for message in messages for row in self._rows_of(message, known, groups)]

    def _rows_of(self, view: MessageView, known: dict[str, int], groups: dict[str, int]) -> list[Row]:
        names = list(dict.fromkeys(row.group for row in view.subscribers))
        shape = (Shape.ORDERED if view.in_order else 0) | (Shape.SHARED if len(view.subscribers) > 1 else 0)
        lane = None if view.lane is None else lane_number(view.lane)
        found = []
        for position, row in enumerate(view.subscribers):
            pool = Shape.POOL if sum(other.group == row.group for other in view.subscribers) > 1 else 0
            # The phase follows from the rest when all rows are there.
            head = (view.handle, known[row.subscriber], self._queue, groups[row.group], lane, PRIORITY_MAX - view.priority)
            place = (int(Phase.HIDDEN), pool | shape, names.index(row.group), position)
            found.append((*head, *place, *_delivery_values(row), view.expires_at))
        return found


def _delivery_values(row: SubscriberView) -> Row:
    counts = (int(row.state), int(row.revealed), row.attempt, row.failures)
    return (*counts, *row.times, row.holder, row.again_at, row.cause)
