"""Which messages of a group may be taken next: lanes by priority and age, without looking at those that must wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import Final, NamedTuple

from relay.queue.states import SubscriberState
from relay.queue.stores.files_message import Kept

SPARE: Final = 1000
"""So many lanes that are over, or known by a later message, may stand in a line's heap beside as many as there are."""

Key = tuple[int, bytes]
"""Nought and a lane's name, or the handle of a message without a lane, and nothing."""


class Offer(NamedTuple):
    """A message that may be taken; offers sort as they are to be processed."""

    falling_rank: int
    handle: int


class Taker(NamedTuple):
    """Who asks, and when; no retry lies beyond ``latest``."""

    subscriber: str
    holder: bytes
    now: int
    latest: int
    without: Collection[bytes]


@dataclass(slots=True)
class Lane:
    """What stands in one lane, by handle. ``pushed`` is the handle under which the line's heap knows it."""

    waiting: list[int] = field(default_factory=list)
    taken: dict[int, bytes] = field(default_factory=dict)
    raised: set[int] = field(default_factory=set)
    pushed: int | None = None


class Line:
    """The lanes of one group. A lane is in the heap while something waits in it."""

    def __init__(self, messages: Mapping[int, Kept]) -> None:
        self._messages = messages
        self._lanes: dict[Key, Lane] = {}
        self._raised: set[Key] = set()
        self._heap: list[tuple[int, Key]] = []

    def stand(self, message: Kept, *, waits: bool, holder: bytes | None) -> None:
        """Note how a message stands in its lane: it waits, a worker has it, or neither."""
        handle = message.handle
        key = (handle, b"") if message.lane is None else (0, message.lane)
        lane = self._lanes.get(key)
        if lane is None:
            if not waits and holder is None:
                return
            lane = self._lanes[key] = Lane()
        place = bisect_left(lane.waiting, handle)
        there = place < len(lane.waiting) and lane.waiting[place] == handle
        if waits and not there:
            insort(lane.waiting, handle)
        elif there and not waits:
            del lane.waiting[place]
        if holder is None:
            lane.taken.pop(handle, None)
        else:
            lane.taken[handle] = holder
        self._raise(key, lane, handle, raised=waits and message.priority > 0)
        if not lane.waiting and not lane.taken:
            del self._lanes[key]
        else:
            self._push(key, lane)

    def _raise(self, key: Key, lane: Lane, handle: int, *, raised: bool) -> None:
        if raised:
            lane.raised.add(handle)
            self._raised.add(key)
        else:
            lane.raised.discard(handle)
            if not lane.raised:
                self._raised.discard(key)

    def _push(self, key: Key, lane: Lane) -> None:
        if lane.waiting and (lane.pushed is None or lane.waiting[0] < lane.pushed):
            lane.pushed = lane.waiting[0]
            heappush(self._heap, (lane.pushed, key))
            if len(self._heap) > 2 * len(self._lanes) + SPARE:
                # Nobody takes, or what goes first fills each take: what ends meanwhile would never be let go.
                self._heap = [(one.pushed, key) for key, one in self._lanes.items() if one.pushed is not None]
                heapify(self._heap)

    def offers(self, taker: Taker, limit: int) -> list[Offer]:
        """Return up to ``limit`` messages that may be taken, in the order in which they are to be processed."""
        ranks = {key: self._rank(self._lanes[key], taker) for key in self._raised}
        given: list[Offer] = []
        for rank in sorted({rank for rank in ranks.values() if rank}, reverse=True):
            walks = [self._walk(key, taker) for key, one in ranks.items() if one == rank]
            given += [Offer(-rank, handle) for handle in islice(merge(*walks), limit - len(given))]
        raised = {key for key, rank in ranks.items() if rank}
        return given + [Offer(0, handle) for handle in self._by_age(taker, limit - len(given), raised)]

    def _rank(self, lane: Lane, taker: Taker) -> int:
        rank = 0
        for handle in lane.raised:
            message = self._messages[handle]
            delivery = message.delivery(taker.subscriber)
            if delivery is not None and delivery.revealed and delivery.state is SubscriberState.AVAILABLE:
                rank = max(rank, 0 if message.expired(taker.now) else message.priority)
        return rank

    def _by_age(self, taker: Taker, limit: int, apart: set[Key]) -> list[int]:
        """Return handles of lanes without priority, the oldest first; every lane that was looked at is put back."""
        given: list[int] = []
        seen: list[Key] = []
        nearest: list[tuple[int, Key]] = []
        walks: dict[Key, Iterator[int]] = {}
        while len(given) < limit and (self._heap or nearest):
            if self._heap and (not nearest or self._heap[0] < nearest[0]):
                handle, key = heappop(self._heap)
                lane = self._lanes.get(key)
                if lane is None or lane.pushed != handle:
                    continue
                lane.pushed = None
                seen.append(key)
                walks[key] = iter(()) if key in apart else self._walk(key, taker)
            else:
                handle, key = heappop(nearest)
                given.append(handle)
            following = next(walks[key], None)
            if following is not None:
                heappush(nearest, (following, key))
        for key in seen:
            self._push(key, self._lanes[key])
        return given

    def _walk(self, key: Key, taker: Taker) -> Iterator[int]:
        """Yield what the lane gives this taker, by handle, up to the first that must wait."""
        lane = self._lanes[key]
        if (not key[0] and key[1] in taker.without) or any(
            holder != taker.holder for holder in lane.taken.values()
        ):
            return
        newest = max(lane.taken, default=0)
        for handle in lane.waiting:
            message = self._messages[handle]
            delivery = message.delivery(taker.subscriber)
            if delivery is None or message.expired(taker.now):
                continue
            mine = delivery.revealed and delivery.state is SubscriberState.AVAILABLE
            if not mine or handle < newest or taker.now < delivery.again_at <= taker.latest:
                return
            yield handle
