"""Where each message of a queue kept in files stands: derived from its states alone, so that taking back is deriving again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from relay.queue.message import Ticket
from relay.queue.states import TAKEN, PublisherState, SubscriberState
from relay.queue.stores.files_lanes import Line, Offer, Taker
from relay.queue.stores.files_message import ENDED, LIVE, NEVER, Kept

SPARE: Final = 1000
"""So many times of messages that are over, beside as many as live, may wait in a heap for being reached."""


class Index:
    """The living messages (and those that ended a short while ago) by what one asks for."""

    def __init__(self) -> None:
        self.messages: dict[int, Kept] = {}
        self.live: set[int] = set()
        self.ended: set[int] = set()
        """Not live, and with no worker: what goes to the journal next."""
        self.children: dict[int, str] = {}
        self._by_id: dict[tuple[str, str], int] = {}
        self._kept: dict[str, set[int]] = {}
        """What waits for nothing but a word, by its publisher."""
        self._lines: dict[str, Line] = {}
        self._groups: dict[str, set[str]] = {}
        self._held: dict[bytes, set[tuple[int, str]]] = {}
        self._holder_of: dict[tuple[int, str], bytes] = {}
        self._expiring: list[tuple[int, int]] = []
        self._delayed: list[tuple[int, int]] = []

    def add(self, message: Kept) -> None:
        """Take in a message that was not here, or that was brought back to what it was."""
        self.messages[message.handle] = message
        if message.reveal_at != NEVER and message.state is PublisherState.PUT:
            self._note_time(self._delayed, message.reveal_at, message.handle)
        for delivery in message.deliveries:
            self._groups.setdefault(delivery.subscriber, set()).add(delivery.group)
        self.live.discard(message.handle)
        self.derive(message)

    def forget(self, message: Kept) -> None:
        """Let a message go."""
        self.messages.pop(message.handle, None)
        self._derive_states(message, here=False)
        for group in message.groups():
            self._line(group[0].group).stand(message, waits=False, holder=None)
            for delivery in group:
                self._note_holder(message.handle, delivery.subscriber, None)

    def derive(self, message: Kept) -> None:
        """Bring everything up to what the message is now."""
        self._derive_states(message, here=True)
        revealed = message.state is PublisherState.REVEALED
        # Nobody may take an undecided child, but what was put behind it must not overtake it.
        undecided = message.state is PublisherState.PUT and message.attempt is not None
        for group in message.groups():
            holder, waits = None, undecided
            for delivery in group:
                self._note_holder(message.handle, delivery.subscriber, delivery.holder)
                if delivery.state in TAKEN:
                    holder = delivery.holder
                elif revealed and delivery.revealed and delivery.state is SubscriberState.AVAILABLE:
                    waits = True
            self._line(group[0].group).stand(message, waits=waits and holder is None, holder=holder)

    def _derive_states(self, message: Kept, *, here: bool) -> None:
        handle, name = message.handle, (message.publisher, message.id)
        live = here and message.state in LIVE
        if live and handle not in self.live and message.expires_at != NEVER:
            self._note_time(self._expiring, message.expires_at, handle)
        (self.live.add if live else self.live.discard)(handle)
        if live and not message.child:
            self._by_id[name] = handle
        elif self._by_id.get(name) == handle:
            del self._by_id[name]
        ended = here and message.state in ENDED and not message.with_a_worker()
        (self.ended.add if ended else self.ended.discard)(handle)
        if here and message.state is PublisherState.PUT and message.attempt is not None:
            self.children[handle] = message.attempt
        else:
            self.children.pop(handle, None)
        if here and message.state is PublisherState.PUT and message.attempt is None and message.reveal_at == NEVER:
            self._kept.setdefault(message.publisher, set()).add(handle)
        elif message.publisher in self._kept:
            self._kept[message.publisher].discard(handle)
            if not self._kept[message.publisher]:
                del self._kept[message.publisher]

    def _note_time(self, times: list[tuple[int, int]], time: int, handle: int) -> None:
        heappush(times, (time, handle))
        if len(times) > 2 * len(self.live) + SPARE:
            # Most messages end long before their time: what is known of them until then would be as much as the queue lets through.
            times[:] = {entry for entry in times if entry[1] in self.live or entry[1] == handle}
            heapify(times)

    def _note_holder(self, handle: int, subscriber: str, holder: bytes | None) -> None:
        held = (handle, subscriber)
        before = self._holder_of.get(held)
        if before == holder:
            return
        if before is not None:
            self._held[before].discard(held)
            del self._holder_of[held]
        if holder is not None:
            self._holder_of[held] = holder
            self._held.setdefault(holder, set()).add(held)

    def _line(self, group: str) -> Line:
        line = self._lines.get(group)
        if line is None:
            line = self._lines[group] = Line(self.messages)
        return line

    def first(self, publisher: str, id_: str) -> int | None:
        """Return the message that a put of this name would repeat."""
        return self._by_id.get((publisher, id_))

    def groups_of(self, subscriber: str) -> set[str]:
        """Return the groups that this subscriber has been in: a message may have an audience of its own."""
        return self._groups.get(subscriber, set())

    def offers(self, groups: set[str], taker: Taker, limit: int) -> list[Offer]:
        """Return what may be taken of these groups, in order."""
        found = [offer for group in groups for offer in self._line(group).offers(taker, limit)]
        return sorted(found)[:limit]

    def held(self, holder: bytes) -> list[Ticket]:
        """Return what a worker has, by handle."""
        found = []
        for handle, subscriber in sorted(self._held.get(holder, ())):
            delivery = self.messages[handle].delivery(subscriber)
            assert delivery is not None
            found.append(Ticket(handle, delivery.attempt))
        return found

    def expired(self, now: int, limit: int) -> list[Kept]:
        """Return up to ``limit`` REVEALED messages past their time that somebody has not taken."""
        return self._reached(self._expiring, now, limit, _may_expire)

    def due(self, now: int, limit: int, held: Collection[str]) -> list[Kept]:
        """Return up to ``limit`` messages whose delay is over and that wait for no attempt, the earliest first.

        What waits for a word only was put before what is behind it: whoever asks may not have heard of that word.
        """
        first = cache(lambda publisher: min(self._kept.get(publisher, ()), default=inf))

        def wanted(message: Kept) -> bool:
            return message.publisher not in held and message.handle < first(message.publisher) and _may_show(message)

        return self._reached(self._delayed, now, limit, wanted)

    def _reached(
        self, times: list[tuple[int, int]], now: int, limit: int, wanted: Callable[[Kept], bool]
    ) -> list[Kept]:
        """Return living messages whose time is reached; what is read is put back, since the caller may leave it as it is."""
        found: dict[int, Kept] = {}
        read = set()
        while times and times[0][0] <= now and len(found) < limit:
            entry = heappop(times)
            if entry[1] in self.live:
                read.add(entry)
                message = self.messages[entry[1]]
                if wanted(message):
                    found[message.handle] = message
        for entry in read:
            heappush(times, entry)
        return list(found.values())


def _may_expire(message: Kept) -> bool:
    waits = any(delivery.state is SubscriberState.AVAILABLE for delivery in message.deliveries)
    return message.state is PublisherState.REVEALED and waits


def _may_show(message: Kept) -> bool:
    return message.state is PublisherState.PUT and message.attempt is None
