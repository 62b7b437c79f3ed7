"""One message in the reference book, with what it is for each subscriber."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from relay.queue.message import MessageView, NewMessage, SubscriberView, Times
from relay.queue.states import TAKEN, Event, PublisherState, SubscriberState, after

P, S = PublisherState, SubscriberState


@dataclass
class Row:
    """What a message is for one subscriber."""

    subscriber: str
    group: str
    state: SubscriberState = S.AVAILABLE
    times: dict[SubscriberState, int] = field(default_factory=dict)
    revealed: bool = False
    attempt: int = 0
    failures: int = 0
    holder: bytes | None = None
    again_at: int | None = None
    cause: str | None = None

    def move(self, event: Event, now: int) -> None:
        self.state = after(self.state, event)
        if self.state is not S.AVAILABLE:
            self.times[self.state] = now

    @classmethod
    def adopted(cls, view: SubscriberView) -> Row:
        """Return the row that a view shows."""
        times = {S[name.upper()]: time for name, time in view.times._asdict().items() if time is not None}
        return cls(
            times=times, **{name: getattr(view, name) for name in cls.__dataclass_fields__.keys() - {"times"}}
        )

    def view(self, *, blocked: bool) -> SubscriberView:
        return SubscriberView(
            subscriber=self.subscriber,
            group=self.group,
            state=self.state,
            times=Times(**{state.name.lower(): time for state, time in self.times.items()}),
            revealed=self.revealed,
            blocked=blocked,
            attempt=self.attempt,
            failures=self.failures,
            holder=self.holder,
            again_at=self.again_at,
            cause=self.cause,
        )


@dataclass
class Entry:
    """A message with its rows."""

    handle: int
    new: NewMessage
    in_order: bool
    rows: list[Row]
    put_at: int
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    priority: int
    attempt: str | None
    reveal_at: int | None
    expires_at: int | None
    state: PublisherState = P.PUT
    times: dict[PublisherState, int] = field(default_factory=dict)

    def move(self, event: Event, now: int) -> None:
        self.state = after(self.state, event)
        self.times[self.state] = now

    def is_undecided(self) -> bool:
        return self.state is P.PUT and self.attempt is not None

    def row(self, subscriber: str) -> Row | None:
        return next((row for row in self.rows if row.subscriber == subscriber), None)

    def groups(self) -> list[list[Row]]:
        names = dict.fromkeys(row.group for row in self.rows)
        return [[row for row in self.rows if row.group == name] for name in names]

    def turn(self) -> list[Row]:
        """Whose turn it is: everybody's, or in order the first group that has not journalled it whole."""
        if not self.in_order:
            return self.rows
        return next((group for group in self.groups() if not all_journalled(group)), [])

    def expired(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    @classmethod
    def adopted(cls, view: MessageView) -> Entry:
        """Return the entry that a view shows."""
        known = {"publisher", "id", "value", "key", "headers", "subject", "lane", "parents"}
        times = (None, view.revealed_at, view.unavailable_at, view.journalled_at, view.deleted_at)
        return cls(
            new=NewMessage(**{name: getattr(view, name) for name in known}),
            rows=[Row.adopted(row) for row in view.subscribers],
            times={state: time for state, time in zip(P, times, strict=True) if time is not None},
            **{
                name: getattr(view, name)
                for name in cls.__dataclass_fields__.keys() - {"new", "rows", "times"}
            },
        )

    def blocked(self, row: Row) -> bool:
        mates = (mate for mate in self.rows if mate.group == row.group and mate is not row)
        return row.state is S.AVAILABLE and any(mate.state in TAKEN for mate in mates)

    def with_a_worker(self) -> bool:
        return any(row.state in TAKEN for row in self.rows)

    def ended_at(self) -> int:
        return self.times[self.state]

    def view(self, *, value: bool) -> MessageView:
        return MessageView(
            handle=self.handle,
            publisher=self.new.publisher,
            id=self.new.id,
            state=self.state,
            put_at=self.put_at,
            revealed_at=self.times.get(P.REVEALED),
            unavailable_at=self.times.get(P.UNAVAILABLE),
            journalled_at=self.times.get(P.JOURNALLED),
            deleted_at=self.times.get(P.DELETED),
            reveal_at=self.reveal_at,
            expires_at=self.expires_at,
            priority=self.priority,
            key=self.new.key,
            value=self.value if value else None,
            headers=self.headers,
            subject=self.new.subject,
            lane=self.new.lane,
            parents=self.new.parents,
            attempt=self.attempt,
            subscribers=tuple(row.view(blocked=self.blocked(row)) for row in self.rows),
            in_order=self.in_order,
        )


def all_journalled(rows: Iterable[Row]) -> bool:
    return all(row.state is S.JOURNALLED for row in rows)
