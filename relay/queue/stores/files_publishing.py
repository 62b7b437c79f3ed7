"""What publishers do with a queue kept in files: put, reveal, take back, give again, edit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from relay.queue.message import NewMessage, PutAnswer
from relay.queue.port import Refused, StoreFull
from relay.queue.receipt import (
    audience_of,
    check,
    check_priority,
    check_subscribers,
    edited,
    received,
    size_of,
)
from relay.queue.states import Event, PublisherState, SubscriberState
from relay.queue.stores.files_base import FilesBase
from relay.queue.stores.files_message import LIVE, NEVER, At, Content, Delivery, Kept
from relay.queue.stores.files_record import HERE, encode_content

_PUT = (PublisherState.PUT,)


class Publishing(FilesBase):
    """The publishers' part of the port."""

    def put(self, messages: Sequence[NewMessage], now: int, *, reveal: bool = True) -> list[PutAnswer]:
        """Store messages in this order; see the port."""
        messages = received(messages)
        with self._writing():
            for new in messages:
                check(self.settings, new)
            self._check_room(messages)
            return [self._put(new, now, reveal=reveal) for new in messages]

    def _check_room(self, messages: Sequence[NewMessage]) -> None:
        names = [(new.publisher, new.id) for new in messages if not new.parents]
        fresh = len(messages) - len(names) + sum(self._index.first(*name) is None for name in set(names))
        if fresh and self.waiting() + fresh > self.settings.waiting_max:
            raise StoreFull(
                f"queue {self.settings.name!r} has {self.waiting()} messages that wait, and {self.settings.waiting_max} "
                "are its bound: let its subscribers catch up, or raise waiting_max"
            )

    def _put(self, new: NewMessage, now: int, *, reveal: bool) -> PutAnswer:
        first = None if new.parents else self._index.first(new.publisher, new.id)
        if first is not None:
            return PutAnswer(first, repeat=True)
        audience = audience_of(self.settings, new)
        ttl = self.settings.ttl_ms if new.ttl_ms is None else new.ttl_ms
        message = Kept(
            handle=self._give_handle(),
            publisher=new.publisher,
            id=new.id,
            lane=new.lane,
            in_order=audience.in_order,
            child=bool(new.parents),
            put_at=now,
            reveal_at=now + new.delay_ms if new.delay_ms else NEVER,
            expires_at=NEVER if ttl is None else now + ttl,
            priority=new.priority,
            attempt=new.attempt,
            size=size_of(new.key, new.value, new.headers),
            at=At(HERE, 0, 0),
            deliveries=[
                Delivery(member, group.name) for group in audience.groups for member in group.members
            ],
        )
        if reveal and message.reveal_at == NEVER and message.attempt is None:
            message.show(message.turn(), now)
        content = Content(new.key, new.value, new.headers, new.subject, new.parents)
        self._add(message, encode_content(content))
        return PutAnswer(message.handle, repeat=False)

    def waiting(self) -> int:
        """Return how many messages are PUT or REVEALED."""
        return len(self._index.live)

    def reveal(self, handles: Sequence[int], now: int, to: Collection[str] | None = None) -> list[bool]:
        """PUT -> REVEALED; see the port."""
        check_subscribers(self.settings, to or ())

        def show(message: Kept) -> bool:
            if message.is_undecided():
                return False
            named = [
                delivery for delivery in message.deliveries if to is not None and delivery.subscriber in to
            ]
            return message.show(message.turn() if to is None else named, now)

        return self._each(handles, LIVE, show)

    def reveal_due(self, now: int, limit: int, *, held: Collection[str] = ()) -> int:
        """Reveal messages whose delay is over; see the port."""
        with self._writing():
            due = self._index.due(now, limit, held)
            for message in due:
                self._touch(message).show(message.turn(), now)
                self._changed(message)
            return len(due)

    def accept(self, handles: Sequence[int], now: int) -> list[bool]:
        """Forget the attempt of children; see the port."""

        def forget(message: Kept) -> bool:
            if message.attempt is None:
                return False
            message.attempt = None
            if message.reveal_at == NEVER or message.reveal_at <= now:
                message.show(message.turn(), now)
            return True

        return self._each(handles, _PUT, forget)

    def withdraw(self, handles: Sequence[int], now: int) -> list[bool]:
        """PUT or REVEALED -> UNAVAILABLE; see the port."""
        return self._each(handles, LIVE, lambda message: _end(message, Event.WITHDRAW, now))

    def discard(self, handles: Sequence[int], now: int) -> list[bool]:
        """PUT -> DELETED of a child; see the port."""
        return self._each(
            handles, _PUT, lambda message: message.attempt is not None and _end(message, Event.DISCARD, now)
        )

    def prioritise(self, handles: Sequence[int], priority: int) -> list[bool]:
        """Set the priority of messages that are PUT or REVEALED."""
        check_priority(priority, "a message")

        def set_priority(message: Kept) -> bool:
            message.priority = priority
            return True

        return self._each(handles, LIVE, set_priority)

    def expire_now(self, handles: Sequence[int], now: int, subscriber: str | None = None) -> list[bool]:
        """AVAILABLE -> EXPIRED -> JOURNALLED at somebody's word; see the port."""
        if subscriber is not None and not any(
            message is not None and message.state in LIVE and message.delivery(subscriber) is not None
            for message in self._messages(handles)
        ):
            check_subscribers(self.settings, [subscriber])

        def expire(message: Kept) -> bool:
            meant = [one for one in message.deliveries if subscriber in (None, one.subscriber)]
            count = message.expire(meant, now)
            message.go_on(now)
            return count > 0

        return self._each(handles, (PublisherState.REVEALED,), expire)

    def expire(self, now: int, limit: int) -> int:
        """Expire what is past its time; see the port."""
        with self._writing():
            left = limit
            for message in self._index.expired(now, limit):
                available = [one for one in message.deliveries if one.state is SubscriberState.AVAILABLE]
                left -= self._touch(message).expire(available[:left], now)
                message.go_on(now)
                self._changed(message)
            return limit - left

    def republish(self, handle: int, subscriber: str, now: int, *, even_done: bool = False) -> bool:
        """UNUSABLE or JOURNALLED -> AVAILABLE for this subscriber; see the port."""
        with self._writing():
            found = None if handle in self._index.messages else self._journal.find(handle)
            content = None
            if found is not None:
                message, content = self._journal.read(*found)
            elif handle in self._index.messages:
                message = self._index.messages[handle]
            else:
                return False
            if not self._may_be_given_again(message, subscriber, even_done=even_done):
                return False
            if found is not None and content is not None:
                self._bury(*found)
                self._add(message, content)
            self._give_again(self._touch(message), subscriber, now)
            self._changed(message)
            return True

    def _may_be_given_again(self, message: Kept, subscriber: str, *, even_done: bool) -> bool:
        if self.settings.group_of(subscriber) is None:
            return False
        delivery = message.delivery(subscriber)
        if delivery is None or delivery.state is not SubscriberState.JOURNALLED:
            return False
        mates = (mate for mate in message.deliveries if mate.group == delivery.group)
        if any(mate.times[SubscriberState.DONE - 1] != NEVER for mate in mates) and not even_done:
            return False
        if message.state is PublisherState.JOURNALLED:
            return message.child or self._index.first(message.publisher, message.id) is None
        return message.state is PublisherState.REVEALED

    @staticmethod
    def _give_again(message: Kept, subscriber: str, now: int) -> None:
        if message.state is PublisherState.JOURNALLED:
            message.move(Event.REPUBLISH, message.times[PublisherState.REVEALED - 2])
            message.times[PublisherState.JOURNALLED - 2] = NEVER
        delivery = message.delivery(subscriber)
        assert delivery is not None
        delivery.move(Event.REPUBLISH, now)
        delivery.again()

    def edit(self, handle: int, value: bytes | None, who: str, reason: str, now: int) -> bool:
        """Replace the value of a message that nobody has ever taken; see the port."""

        def replace(message: Kept) -> bool:
            if any(delivery.attempt for delivery in message.deliveries):
                return False
            before = self._content(message)
            headers = (*before.headers, edited(before.value, who, reason, now))
            size = size_of(before.key, value, headers)
            if size > self.settings.message_bytes:
                raise Refused(
                    f"message {handle} would have {size} bytes, queue {self.settings.name!r} takes "
                    f"{self.settings.message_bytes}: raise its bound or write less"
                )
            message.size = size
            assert self._pending is not None
            self._pending.contents[handle] = encode_content(before._replace(value=value, headers=headers))
            return True

        return self._each([handle], LIVE, replace)[0]

    def _each(
        self, handles: Sequence[int], states: Collection[PublisherState], change: Callable[[Kept], bool]
    ) -> list[bool]:
        """Change messages that are in one of these states; False, and nothing changed, for the others."""
        with self._writing():
            answers = []
            for message in self._messages(handles):
                changed = message is not None and message.state in states and change(self._touch(message))
                if message is not None and changed:
                    self._changed(message)
                answers.append(changed)
            return answers


def _end(message: Kept, event: Event, now: int) -> bool:
    message.move(event, now)
    message.expire(message.deliveries, now)
    return True
