"""What can be read in a queue kept as a plain book: nothing here changes it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from relay.queue.message import MessageView, Ticket
from relay.queue.port import Child, Filter, Holder, Waiting
from relay.queue.receipt import size_of
from relay.queue.settings import QueueSettings
from relay.queue.states import TAKEN, PublisherState, SubscriberState
from tests.contracts.queue_entry import Entry

P, S = PublisherState, SubscriberState
LIVE = (P.PUT, P.REVEALED)
ENDED = (P.JOURNALLED, P.UNAVAILABLE, P.DELETED)


class BookPages:
    """Its entries, holders and outcomes, and every question of the port about them."""

    shared = False

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.uuid = uuid4().hex
        self._entries: dict[int, Entry] = {}
        self.retired = False
        self._last = 0
        self._holders: dict[bytes, Holder] = {}
        self._outcomes: dict[str, bool] = {}

    def view(self, handle: int, *, value: bool = True) -> MessageView | None:
        entry = self._entries.get(handle)
        return None if entry is None else entry.view(value=value)

    def views(self, handles: Sequence[int], *, value: bool = True) -> list[MessageView]:
        found = (self.view(handle, value=value) for handle in sorted(set(handles)))
        return [view for view in found if view is not None]

    def find(self, chosen: Filter, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        found = [
            entry for entry in self._entries.values() if entry.handle > after and self._fits(entry, chosen)
        ]
        return [entry.view(value=False) for entry in found[:limit]]

    def _fits(self, entry: Entry, chosen: Filter) -> bool:
        rows = [row for row in entry.rows if chosen.subscriber in (None, row.subscriber)]
        return (
            bool(rows)
            and chosen.state in (None, entry.state)
            and chosen.publisher in (None, entry.new.publisher)
            and (chosen.subscriber_state is None or any(row.state is chosen.subscriber_state for row in rows))
            and (not chosen.unusable or any(S.UNUSABLE in row.times for row in rows))
            and (chosen.since is None or entry.put_at >= chosen.since)
            and (chosen.until is None or entry.put_at < chosen.until)
        )

    def counts(self) -> tuple[dict[PublisherState, int], list[Waiting]]:
        states = [entry.state for entry in self._entries.values()]
        subscribers = [member for group in self.settings.audience.groups for member in group.members]
        found: dict[str, list[SubscriberState]] = {subscriber: [] for subscriber in subscribers}
        for entry in self._entries.values():
            for row in entry.rows:
                found.setdefault(row.subscriber, []).append(row.state)
        gone = [name for name in sorted(found.keys() - set(subscribers)) if {S.AVAILABLE, *TAKEN} & set(found[name])]
        return {state: states.count(state) for state in P}, [
            Waiting(subscriber, {state: rows.count(state) for state in S})
            for subscriber, rows in ((name, found[name]) for name in (*subscribers, *gone))
        ]

    def unusable(self) -> dict[str, int] | None:
        found = [row.subscriber for entry in self._entries.values() for row in entry.rows if S.UNUSABLE in row.times]
        return {subscriber: found.count(subscriber) for subscriber in found}

    def waiting(self) -> int:
        return sum(entry.state in LIVE for entry in self._entries.values())

    def journalled(self, now: int, limit: int) -> list[MessageView]:
        retain = self.settings.retain
        ended = [
            entry for entry in self._entries.values() if entry.state in ENDED and not entry.with_a_worker()
        ]
        ended.sort(key=lambda entry: (entry.ended_at(), entry.handle))
        past: list[Entry] = []
        size = sum(size_of(entry.new.key, entry.value, entry.headers) for entry in ended)
        for index, entry in enumerate(ended):
            too_old = retain.age_ms is not None and entry.ended_at() + retain.age_ms <= now
            too_many = retain.count is not None and len(ended) - index > retain.count
            too_big = retain.bytes is not None and size > retain.bytes
            if too_old or too_many or too_big:
                past.append(entry)
            size -= size_of(entry.new.key, entry.value, entry.headers)
        return [entry.view(value=True) for entry in past[:limit]]

    def holders(self) -> list[Holder]:
        return list(self._holders.values())

    def held(self, holder: bytes) -> list[Ticket]:
        return [
            Ticket(entry.handle, row.attempt)
            for entry in self._entries.values()
            for row in entry.rows
            if row.state in TAKEN and row.holder == holder
        ]

    def holds(self, subscriber: str, tickets: Sequence[Ticket]) -> list[SubscriberState | None]:
        return [self._holds(subscriber, ticket) for ticket in tickets]

    def _holds(self, subscriber: str, ticket: Ticket) -> SubscriberState | None:
        entry = self._entries.get(ticket.handle)
        row = entry.row(subscriber) if entry else None
        if row is None or row.attempt != ticket.attempt:
            return None
        if row.state in TAKEN:
            return row.state
        return next((state for state in (S.DONE, S.UNUSABLE) if state in row.times), None)

    def outcome(self, attempt: str) -> bool | None:
        return self._outcomes.get(attempt)

    def outcomes(self, *, after: str = "", limit: int = 1000) -> list[tuple[str, bool]]:
        return [(name, self._outcomes[name]) for name in sorted(self._outcomes) if name > after][:limit]

    def children(self, limit: int, *, after: int = 0) -> list[Child]:
        waiting = [entry for entry in self._entries.values() if entry.state is P.PUT and entry.handle > after]
        return [Child(entry.handle, entry.attempt) for entry in waiting if entry.attempt is not None][:limit]
