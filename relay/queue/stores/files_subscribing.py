"""What subscribers and their workers do with a queue kept in files: take, end, come, go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from relay.queue.message import Taken, Ticket
from relay.queue.port import Holder, Refused
from relay.queue.receipt import check_subscribers
from relay.queue.states import TAKEN, Event, PublisherState, SubscriberState, sources
from relay.queue.stores.files_base import FilesBase
from relay.queue.stores.files_lanes import Taker
from relay.queue.stores.files_message import NEVER, Delivery, Kept, never_if_none

Change = Callable[[Kept, Delivery], None]
_STARTS = sources(Event.START, SubscriberState)
_ENDS = sources(Event.FINISH, SubscriberState)


class Subscribing(FilesBase):
    """The subscribers' part of the port."""

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
        """AVAILABLE -> GET -> FETCHED; see the port."""
        check_subscribers(self.settings, [subscriber])
        with self._writing():
            if holder not in self._holders:
                raise Refused(f"a worker of {subscriber!r} was not entered, or was recovered: it must stop")
            groups = self._index.groups_of(subscriber)
            offers = self._index.offers(groups, Taker(subscriber, holder, now, now + self.settings.wait_max_ms, without), limit)
            return [self._hand_over(offer.handle, subscriber, holder, now, start=start) for offer in offers]

    def _hand_over(self, handle: int, subscriber: str, holder: bytes, now: int, *, start: bool) -> Taken:
        message = self._touch(self._index.messages[handle])
        delivery = message.delivery(subscriber)
        assert delivery is not None
        delivery.move(Event.GET, now)
        delivery.move(Event.FETCH, now)
        if start:
            delivery.move(Event.START, now)
        delivery.attempt += 1
        delivery.holder, delivery.again_at = holder, NEVER
        self._changed(message)
        content = self._content(message)
        return Taken(
            Ticket(handle, delivery.attempt),
            message.publisher,
            message.id,
            content.key,
            content.value,
            content.headers,
            content.subject,
            message.lane,
            message.priority,
            delivery.failures,
            message.put_at,
            content.parents,
            delivery.group,
            sum(one.group == delivery.group for one in message.deliveries) > 1,
        )

    def start(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        """FETCHED -> IN_PROCESS."""

        def start(_: Kept, delivery: Delivery) -> None:
            delivery.move(Event.START, now)

        return self._each_ticket(subscriber, _STARTS, [(ticket, start) for ticket in tickets])

    def finish(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        """FETCHED or IN_PROCESS -> DONE -> JOURNALLED; see the port."""

        def finish(message: Kept, delivery: Delivery) -> None:
            delivery.move(Event.FINISH, now)
            delivery.move(Event.JOURNAL, now)
            delivery.holder = None
            message.expire((one for one in message.deliveries if one.group == delivery.group), now)
            message.go_on(now)

        return self._each_ticket(subscriber, _ENDS, [(ticket, finish) for ticket in tickets])

    def refuse(self, subscriber: str, causes: Sequence[tuple[Ticket, str]], now: int) -> list[bool]:
        """GET, FETCHED, IN_PROCESS -> UNUSABLE -> JOURNALLED with a cause; see the port."""

        def refuse(cause: str) -> Change:
            def change(message: Kept, delivery: Delivery) -> None:
                delivery.move(Event.REFUSE, now)
                delivery.move(Event.JOURNAL, now)
                delivery.holder, delivery.cause = None, cause
                message.go_on(now)

            return change

        return self._each_ticket(subscriber, TAKEN, [(ticket, refuse(cause)) for ticket, cause in causes])

    def free(
        self,
        subscriber: str,
        tickets: Sequence[Ticket],
        now: int,
        *,
        again_at: int | None = None,
        failed: bool = False,
    ) -> list[bool]:
        """GET, FETCHED, IN_PROCESS -> AVAILABLE; see the port."""

        def free(message: Kept, delivery: Delivery) -> None:
            delivery.move(Event.FREE, now)
            delivery.holder, delivery.again_at = None, never_if_none(again_at)
            delivery.failures += failed
            if message.state is PublisherState.UNAVAILABLE:
                message.expire([delivery], now)

        return self._each_ticket(subscriber, TAKEN, [(ticket, free) for ticket in tickets])

    def _each_ticket(
        self, subscriber: str, states: Collection[int], changes: Sequence[tuple[Ticket, Change]]
    ) -> list[bool]:
        with self._writing():
            return [self._with(subscriber, ticket, states, change) for ticket, change in changes]

    def _with(self, subscriber: str, ticket: Ticket, states: Collection[int], change: Change) -> bool:
        """Change what a ticket holds; False, and nothing changed, where the guard does not hold."""
        message = self._index.messages.get(ticket.handle)
        delivery = message.delivery(subscriber) if message is not None else None
        if message is None or delivery is None:
            return False
        if delivery.attempt != ticket.attempt or delivery.state not in states:
            return False
        change(self._touch(message), delivery)
        self._changed(message)
        return True

    # Holders ----------------------------------------------------------------------------------------------------------

    def enter(self, holder: Holder) -> None:
        """Make a worker known before its first take."""
        with self._writing() as pending:
            self._note(holder.id, holder)
            pending.holders[holder.id] = holder
            pending.left = [one for one in pending.left if one != holder.id]

    def beat(self, holder: bytes) -> bool:
        """Count one more beat; False if the holder was recovered."""
        with self._writing() as pending:
            known = self._holders.get(holder)
            if known is None:
                return False
            beaten = known._replace(beats=known.beats + 1)
            self._note(holder, beaten)
            pending.holders[holder] = beaten
            return True

    def leave(self, holder: bytes) -> bool:
        """Forget a worker; False while it holds messages."""
        with self._writing() as pending:
            if self._index.held(holder):
                return False
            if holder in self._holders:
                self._note(holder, None)
                pending.holders.pop(holder, None)
                pending.left.append(holder)
            return True

    def _note(self, holder: bytes, known: Holder | None) -> None:
        """Change what is known of a worker, so that it can be taken back."""
        assert self._pending is not None
        before = self._holders.get(holder)

        def put_back(to: Holder | None) -> None:
            if to is None:
                self._holders.pop(holder, None)
            else:
                self._holders[holder] = to

        self._pending.undo.append(lambda: put_back(before))
        put_back(known)

    def holders(self) -> list[Holder]:
        """Return every known worker of this queue."""
        self._guard()
        return list(self._holders.values())

    def held(self, holder: bytes) -> list[Ticket]:
        """Return what a worker has not given back, by handle."""
        self._guard()
        return self._index.held(holder)

    def holds(self, subscriber: str, tickets: Sequence[Ticket]) -> list[SubscriberState | None]:
        """Return the state each ticket's attempt has led to; see the port."""
        self._guard()
        return [self._holds(subscriber, ticket) for ticket in tickets]

    def _holds(self, subscriber: str, ticket: Ticket) -> SubscriberState | None:
        message = self._seen(ticket.handle)
        delivery = message.delivery(subscriber) if message is not None else None
        if delivery is None or delivery.attempt != ticket.attempt:
            return None
        if delivery.state in TAKEN:
            return delivery.state
        ends = (SubscriberState.DONE, SubscriberState.UNUSABLE)
        return next((state for state in ends if delivery.times[state - 1] != NEVER), None)

    def _seen(self, handle: int) -> Kept | None:
        """Return a message from memory or from the journal."""
        message = self._index.messages.get(handle)
        if message is None:
            found = self._journal.find(handle)
            message = self._journal.read(*found)[0] if found is not None else None
        return message

    # Outcomes -----------------------------------------------------------------------------------------------------

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:  # noqa: ARG002 - outcomes have no age here
        """Write an attempt's outcome unless it has one, and return the one that stands."""
        with self._writing() as pending:
            if attempt not in self._outcomes:
                self._outcomes[attempt] = committed
                pending.undo.append(lambda: self._outcomes.__delitem__(attempt))
                pending.outcomes.append((attempt, committed))
            return self._outcomes[attempt]

    def outcome(self, attempt: str) -> bool | None:
        """Return an attempt's outcome, None if it has none yet."""
        self._guard()
        return self._outcomes.get(attempt)

    def forget(self, attempts: Sequence[str]) -> None:
        """Leave committed outcomes out of what is written anew; a process that reads the files back before that knows them again."""
        with self._writing() as pending:
            gone = [attempt for attempt in attempts if self._outcomes.get(attempt)]
            for attempt in gone:
                del self._outcomes[attempt]
            pending.undo.append(lambda: self._outcomes.update(dict.fromkeys(gone, True)))
