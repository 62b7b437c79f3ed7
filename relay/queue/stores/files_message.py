"""A message of a queue kept in files, as it is held in memory: its states; what it carries stays on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from relay.queue.message import MessageView, Parent, SubscriberView, Times
from relay.queue.states import TAKEN, Event, PublisherState, SubscriberState, after

NEVER: Final = -1
"""A time that was not entered."""
LIVE: Final = (PublisherState.PUT, PublisherState.REVEALED)
ENDED: Final = (PublisherState.UNAVAILABLE, PublisherState.JOURNALLED, PublisherState.DELETED)
_AVAILABLE, _JOURNALLED = SubscriberState.AVAILABLE, SubscriberState.JOURNALLED


class Content(NamedTuple):
    """What a message carries."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    subject: str | None
    parents: tuple[Parent, ...]


class At(NamedTuple):
    """Where the content lies: the log file's number, and bytes in it."""

    file: int
    offset: int
    length: int


@dataclass(slots=True)
class Delivery:
    """What a message is for one subscriber."""

    subscriber: str
    group: str
    state: SubscriberState = _AVAILABLE
    times: list[int] = field(default_factory=lambda: [NEVER] * 7)
    revealed: bool = False
    attempt: int = 0
    failures: int = 0
    holder: bytes | None = None
    again_at: int = NEVER
    cause: str | None = None

    def move(self, event: Event, now: int) -> None:
        """Enter the state that follows; raises IllegalTransition."""
        self.state = after(self.state, event)
        if self.state is not _AVAILABLE:
            self.times[self.state - 1] = now

    def again(self) -> None:
        """Start anew, as after a republication; attempts go on counting."""
        self.times = [NEVER] * 7
        self.revealed, self.failures, self.again_at, self.cause = True, 0, NEVER, None

    def copy(self) -> Delivery:
        """Return what it is now, apart from what it becomes."""
        return Delivery(
            self.subscriber,
            self.group,
            self.state,
            self.times.copy(),
            self.revealed,
            self.attempt,
            self.failures,
            self.holder,
            self.again_at,
            self.cause,
        )

    def view(self, *, blocked: bool) -> SubscriberView:
        """Return what anybody may see."""
        return SubscriberView(
            self.subscriber,
            self.group,
            self.state,
            Times(*(none_if_never(time) for time in self.times)),
            self.revealed,
            blocked,
            self.attempt,
            self.failures,
            self.holder,
            none_if_never(self.again_at),
            self.cause,
        )


@dataclass(slots=True)
class Kept:
    """A message with its deliveries; ``times`` are those of REVEALED, UNAVAILABLE, JOURNALLED and DELETED."""

    handle: int
    publisher: str
    id: str
    lane: bytes | None
    in_order: bool
    child: bool
    put_at: int
    reveal_at: int
    expires_at: int
    priority: int
    attempt: str | None
    size: int
    at: At
    deliveries: list[Delivery]
    state: PublisherState = PublisherState.PUT
    times: list[int] = field(default_factory=lambda: [NEVER] * 4)

    def move(self, event: Event, now: int) -> None:
        """Enter the state that follows; raises IllegalTransition."""
        self.state = after(self.state, event)
        self.times[self.state - 2] = now

    def keep(self) -> Callable[[], None]:
        """Return what brings the message back to what it is now."""
        kept = self.state, self.times.copy(), self.priority, self.attempt, self.size, self.at
        deliveries = [delivery.copy() for delivery in self.deliveries]

        def restore() -> None:
            self.state, self.times, self.priority, self.attempt, self.size, self.at = kept
            self.deliveries = deliveries

        return restore

    def delivery(self, subscriber: str) -> Delivery | None:
        """Return what the message is for this subscriber; None: it is not meant for it."""
        for delivery in self.deliveries:
            if delivery.subscriber == subscriber:
                return delivery
        return None

    def expired(self, now: int) -> bool:
        """Tell whether its time is over."""
        return self.expires_at != NEVER and self.expires_at <= now

    def with_a_worker(self) -> bool:
        """Tell whether somebody has taken it."""
        return any(delivery.state in TAKEN for delivery in self.deliveries)

    def ended_at(self) -> int:
        """Return when the publisher's last state was entered."""
        return self.times[self.state - 2]

    def groups(self) -> list[list[Delivery]]:
        """Return the deliveries by group, in order."""
        if len(self.deliveries) == 1:
            return [self.deliveries]
        found: dict[str, list[Delivery]] = {}
        for delivery in self.deliveries:
            found.setdefault(delivery.group, []).append(delivery)
        return list(found.values())

    def turn(self) -> list[Delivery]:
        """Return whose turn it is: everybody's, or in order the first group's that has not journalled it whole."""
        if not self.in_order:
            return self.deliveries
        return next((group for group in self.groups() if not all_journalled(group)), [])

    def is_undecided(self) -> bool:
        """Whether it is a child whose attempt has no outcome yet."""
        return self.state is PublisherState.PUT and self.attempt is not None

    def show(self, to: Iterable[Delivery], now: int) -> bool:
        """Reveal to whoever does not see it yet; False if there is nobody."""
        hidden = [delivery for delivery in to if delivery.state is _AVAILABLE and not delivery.revealed]
        for delivery in hidden:
            delivery.revealed = True
        if hidden and self.state is PublisherState.PUT:
            self.move(Event.REVEAL, now)
        return bool(hidden)

    def expire(self, deliveries: Iterable[Delivery], now: int) -> int:
        """AVAILABLE -> EXPIRED -> JOURNALLED; return how many."""
        count = 0
        for delivery in deliveries:
            if delivery.state is _AVAILABLE:
                delivery.move(Event.EXPIRE, now)
                delivery.move(Event.JOURNAL, now)
                count += 1
        return count

    def go_on(self, now: int) -> None:
        """Journal the message when every subscriber has; in order, reveal it to the next group."""
        if self.state is PublisherState.REVEALED and all_journalled(self.deliveries):
            self.move(Event.JOURNAL, now)
        elif self.in_order and all_journalled(self.groups()[0]):
            self.show(self.turn(), now)

    def view(self, content: Content, *, value: bool) -> MessageView:
        """Return what anybody may see."""
        busy = {delivery.group for delivery in self.deliveries if delivery.state in TAKEN}
        revealed, unavailable, journalled, deleted = (none_if_never(time) for time in self.times)
        return MessageView(
            handle=self.handle,
            publisher=self.publisher,
            id=self.id,
            state=self.state,
            put_at=self.put_at,
            revealed_at=revealed,
            unavailable_at=unavailable,
            journalled_at=journalled,
            deleted_at=deleted,
            reveal_at=none_if_never(self.reveal_at),
            expires_at=none_if_never(self.expires_at),
            priority=self.priority,
            key=content.key,
            value=content.value if value else None,
            headers=content.headers,
            subject=content.subject,
            lane=self.lane,
            parents=content.parents,
            attempt=self.attempt,
            subscribers=tuple(
                one.view(blocked=one.state is _AVAILABLE and one.group in busy) for one in self.deliveries
            ),
            in_order=self.in_order,
        )


def all_journalled(deliveries: Iterable[Delivery]) -> bool:
    """Tell whether each of these subscribers is through with the message."""
    return all(delivery.state is _JOURNALLED for delivery in deliveries)


def none_if_never(time: int) -> int | None:
    """Return a time as views have it."""
    return None if time == NEVER else time


def never_if_none(time: int | None) -> int:
    """Return a time as it is kept."""
    return NEVER if time is None else time
