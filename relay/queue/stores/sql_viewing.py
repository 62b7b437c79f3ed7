"""What anybody may see of a queue in a database, its journal, and its move to another store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from relay.queue.message import MessageView
from relay.queue.port import Filter, Waiting
from relay.queue.receipt import size_of
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import sql_text as sql
from relay.queue.stores.sql_base import SqlBase
from relay.queue.stores.sql_session import Row, unit
from relay.queue.stores.sql_values import headers_of, message_view

SORTED_MAX: Final = 10_000
"""The journal's oldest are exact among so many of the lowest handles: sorting all of them would cost their number."""
_LIVE: Final = (PublisherState.PUT, PublisherState.REVEALED)


class Viewing(SqlBase):
    """Whoever reads, and what removes what was read."""

    def view(self, handle: int, *, value: bool = True) -> MessageView | None:
        """Return a message and all its states."""
        found = self._views([handle], value=value)
        return found[0] if found else None

    def views(self, handles: Sequence[int], *, value: bool = True) -> list[MessageView]:
        """Return messages and all their states, by handle."""
        return self._views(handles, value=value)

    def _views(self, handles: Sequence[int], *, value: bool) -> list[MessageView]:
        with self.session.snapshot():
            messages = self._run(sql.VIEW, handles=list(handles), value=int(value))
            rows = self._run(sql.VIEW_DELIVERIES, handles=list(handles))
        deliveries: dict[int, list[Row]] = {}
        for row in rows:
            deliveries.setdefault(row[0], []).append(row)
        views = [message_view(row, deliveries.get(row[0], [])) for row in messages]
        for view in views if value else ():
            if view.state in _LIVE:
                self._check_value(view.value, view.headers)
        return views

    def find(self, chosen: Filter, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        """Return messages by handle, without their values."""
        asked = {
            "state": chosen.state,
            "sub": None if chosen.subscriber is None else self._subscribers.get(chosen.subscriber, -1),
            "substate": chosen.subscriber_state,
            "unusable": int(chosen.unusable),
            "publisher": chosen.publisher,
            "since": chosen.since,
            "until": chosen.until,
        }
        numbers = {name: int(v) if isinstance(v, PublisherState | SubscriberState) else v for name, v in asked.items()}
        text = sql.FIND_AMONG_LIVE if chosen.state in _LIVE else sql.FIND_AMONG_ALL
        # One state of the database: a page that others trim meanwhile would be empty, and look like the end.
        with self.session.snapshot():
            handles = [row[0] for row in self._run(text, **numbers, after=after, limit=limit)]
            return self._views(handles, value=False)

    def counts(self) -> tuple[dict[PublisherState, int], list[Waiting]]:
        """Return how many are in each state; a subscriber's JOURNALLED is what is in no other state of its."""
        with self.session.snapshot():
            states = dict.fromkeys(PublisherState, 0)
            for number, count in (*self._run(sql.COUNT_LIVE), *self._run(sql.COUNT_ENDED)):
                states[PublisherState(number)] = count
            ended = states[PublisherState.UNAVAILABLE] + states[PublisherState.DELETED]
            waiting, over = self.session.tallied(self._queue)
            states[PublisherState.JOURNALLED] = over - ended
            found = {number: dict.fromkeys(SubscriberState, 0) for number in self._subscribers.values()}
            numbers = {"subs": sorted(found)}
            for number, count in (*self._run(sql.COUNT_WAITING, **numbers), *self._run(sql.COUNT_HIDDEN, **numbers)):
                found[number][SubscriberState.AVAILABLE] += count
            for number, state, count in self._run(sql.COUNT_TAKEN):
                if number in found:  # a process with a newer configuration may have added a subscriber since this one began
                    found[number][SubscriberState(state)] += count
        names = [member for group in self.settings.audience.groups for member in group.members]
        # Whom the configuration has no more: what waits for it keeps its messages REVEALED for ever.
        names += sorted(name for name, number in self._subscribers.items() if name not in names and any(found[number].values()))
        for by_state in found.values():
            by_state[SubscriberState.JOURNALLED] = waiting + over - sum(by_state.values())
        return states, [Waiting(name, found[self._subscribers[name]]) for name in names]

    def unusable(self) -> dict[str, int] | None:
        """Return how many messages each subscriber found UNUSABLE."""
        found: dict[int, int] = dict(self._run(sql.COUNT_UNUSABLE))
        return {name: found[number] for name, number in self._subscribers.items() if number in found}

    # The journal --------------------------------------------------------------------------------------------------

    def journalled(self, now: int, limit: int) -> list[MessageView]:
        """Return what is past the queue's retention, oldest first."""
        retain = self.settings.retain
        with self.session.snapshot():
            count = self._count_over()
            # No more than there are: behind the last of them are those that wait, and all would be looked through for another.
            ended = self._run(sql.ENDED, limit=min(max(SORTED_MAX, limit), count)) if count > 0 else []
            size = self._size_over() if retain.bytes is not None else 0
        past = []
        for handle, at, own, text in sorted(ended, key=lambda row: (row[1], row[0])):
            too_old = retain.age_ms is not None and at + retain.age_ms <= now
            too_many = retain.count is not None and count > retain.count
            if too_old or too_many or (retain.bytes is not None and size > retain.bytes):
                past.append(handle)
            count -= 1
            size -= own + size_of(None, None, headers_of(text))
            if len(past) == limit:
                break
        views = {view.handle: view for view in self._views(past, value=True)}
        return [views[handle] for handle in past]

    def _count_over(self) -> int:
        """Return how many have ended, by the tally: counting them costs their number at every step of trimming them."""
        return self.session.tallied(self._queue)[1] - int(self._run(sql.HELD_OVER)[0][0])

    def _size_over(self) -> int:
        size, after = int(self._run(sql.SIZE_OVER)[0][0]), 0
        # In pages: a journal does not fit into memory.
        while page := self._run(sql.HEADERS_OVER, after=after, limit=SORTED_MAX):
            size += sum(size_of(None, None, headers_of(text)) for _, text in page)
            after = page[-1][0]
        return size

    @unit
    def trim(self, handles: Sequence[int]) -> int:
        """Remove messages that ended and that no worker has."""
        there = [row[0] for row in self._run(sql.LOCK_MESSAGES, handles=list(handles))]
        gone = [row[0] for row in self._run(sql.TRIMMABLE, handles=there)]
        if gone:
            self._write(sql.TRIM_DELIVERIES, handles=gone)
            self._write(sql.TRIM_MESSAGES, handles=gone)
            self.session.tally(self._queue, 0, -len(gone))
        return len(gone)
