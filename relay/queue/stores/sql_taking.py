"""What one take gives: whole levels of priority, each by handle, as far as its lanes are open."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from relay.message.queue_headers import PRIORITY_MAX
from relay.queue.stores import sql_text as sql
from relay.queue.stores.lanes import Candidate, Closed, Lane
from relay.queue.stores.sql_schema import Phase
from relay.queue.stores.sql_session import Row, Session

PAGE_MAX: Final = 4096
LEVEL_MAX: Final = 20_000
"""Messages of one priority whose lanes are known to a take. Beyond them age among lanes of that priority is not exact.

Where all of them lie in lanes that are shut, so many more are looked at, until one is open.
"""
_ABOVE_ALL: Final = -1
_BELOW_ALL: Final = 2**63 - 1


class Choice:
    """The messages that one take gives to one holder; read inside the unit that takes them."""

    def __init__(
        self,
        session: Session,
        queue: int,
        subscriber: int,
        holder: bytes,
        limit: int,
        now: int,
        latest: int,
        without: Collection[bytes],
    ) -> None:
        self._session = session
        self._given = {"queue": queue, "sub": subscriber, "now": now, "latest": latest}
        self._holder = holder
        self._limit = limit
        self._now = now
        self._latest = latest
        self._closed = Closed.without(without)
        self._ranks: dict[Lane, int] = {}
        """The best rank of what keeps its place in a lane for this subscriber and would wait there again."""
        self._waiting: list[int] = []

    def candidates(self) -> list[Candidate]:
        """Return what is given, in the order in which it is to be processed."""
        self._session.count(sql.WAKE, self._given)
        first, last = self._session.run(sql.RANKS, self._given)[0]
        if first is None:
            return []
        self._shut()
        if first == last and not any(rank < first for rank in self._ranks.values()):
            return self._closed.admit(self._by_rank(first), self._limit, self._now, self._latest)
        return self._by_level()

    def _shut(self) -> None:
        for group, lane, handle, holder in self._session.run(sql.HELD_LANES, self._given):
            self._closed.hold(group, lane, handle, own=holder == self._holder)
        for group, lane, handle, rank, phase in self._session.run(sql.PLACES, self._given):
            self._closed.place(group, lane, handle)
            if phase == Phase.RETRY:
                self._ranks[group, lane] = min(rank, self._ranks.get((group, lane), rank))

    def _by_rank(self, rank: int) -> Iterator[Candidate]:
        """Yield what waits by rank and handle: by handle, if there is one rank only."""
        place, size = {"rank": rank, "handle": _ABOVE_ALL}, self._limit
        given = {**self._given, "shut": self._shut_numbers()}
        while page := self._session.run(sql.READY_PAGE, {**given, **place, "limit": size}):
            yield from map(Candidate._make, page)
            if len(page) < size:
                return
            place, size = {"rank": page[-1][3], "handle": page[-1][0]}, min(4 * size, PAGE_MAX)

    def _shut_numbers(self) -> list[int]:
        """Return lanes that the database need not even read: thousands of messages may wait in one."""
        shut = set(self._closed.numbers)
        # A number stands for a lane of every group, so what another holder has shuts it only if there is one group.
        if self._closed.lanes and self._session.run(sql.COUNT_GROUPS, self._given)[0][0] == 1:
            shut |= {number for _, number in self._closed.lanes}
        return sorted(shut)

    def _by_level(self) -> list[Candidate]:
        found: list[Candidate] = []
        seen: set[Lane] = set()
        shut = self._shut_numbers()
        self._waiting = [row[0] for row in self._session.run(sql.RANKS_WAITING, self._given)]
        for rank in range(PRIORITY_MAX + 1):
            lanes = self._lanes_at(rank, shut) - seen
            seen |= lanes
            missing = self._limit - len(found)
            found += self._closed.admit(self._level(rank, lanes), missing, self._now, self._latest)
            if len(found) == self._limit:
                break
        return found

    def _lanes_at(self, rank: int, shut: list[int]) -> set[Lane]:
        """Return lanes in which this rank waits, unexpired: of the oldest messages, and until one of them is open."""
        found = {lane for lane, best in self._ranks.items() if best == rank}
        place = {"rank": rank, "limit": LEVEL_MAX, "shut": shut}
        handle, is_open = _ABOVE_ALL, False
        while not is_open:
            page = self._session.run(sql.READY_LEVEL, {**self._given, **place, "handle": handle})
            for group, lane, handle in page:
                found.add((group, lane))
                is_open = is_open or self._closed.gives((group, lane), handle)
            if len(page) < LEVEL_MAX:
                break
        return found

    def _level(self, rank: int, lanes: set[Lane]) -> Iterator[Candidate]:
        """Yield what waits in these lanes, and without a lane at this rank, by handle."""
        numbers = sorted({number for _, number in lanes})
        above, size = _ABOVE_ALL, self._limit
        while True:
            page = self._oldest(rank, {**self._given, "lanes": numbers, "handle": above, "limit": size})
            yield from (
                Candidate._make(row) for row in page if row[2] is None or (row[1], row[2]) in lanes
            )
            if len(page) < size:
                return
            above, size = page[-1][0], min(4 * size, PAGE_MAX)

    def _oldest(self, level: int, asked: dict[str, Any]) -> list[Row]:
        """Return the oldest of what waits without a lane at this rank, and in the lanes at any: each along its index.

        First the level's own in lanes, since what is newer than a full page need not be looked for among the others.
        """
        others = [(sql.READY_LANES, rank) for rank in self._waiting if rank != level] if asked["lanes"] else []
        page: list[Row] = []
        for text, rank in ((sql.READY_LANES, level), (sql.READY_ALONE, level), *others):
            last = page[-1][0] if len(page) == asked["limit"] else _BELOW_ALL
            page += self._session.run(text, {**asked, "rank": rank, "last": last})
            page = sorted(page)[: asked["limit"]]
        return page
