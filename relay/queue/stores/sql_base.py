"""What every part of a queue in a database stands on: its numbers there, and what follows when a delivery is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from relay.message.errors import Stopped
from relay.queue.message import Audience
from relay.queue.port import Refused, Retired
from relay.queue.receipt import Headers, check_subscribers, has_value_in_log
from relay.queue.settings import QueueSettings
from relay.queue.stores import sql_text as sql
from relay.queue.stores.sql_schema import Shape
from relay.queue.stores.sql_session import Row, Seat, Session
from relay.queue.stores.sql_values import seats
from relay.world import randomness

NEIGHBOURS_MAX: Final = 8
"""Handles are read along the key where no more subscribers have rows in the database: it is ordered by handle first."""


class SqlBase:
    """A queue in a database, reached by a session."""

    def __init__(self, settings: QueueSettings, session: Session) -> None:
        self.settings = settings
        self.session = session
        with session.unit():
            session.count(sql.ADD_QUEUE, {"name": settings.name, "uuid": randomness.uuid_bytes().hex()})
            self._queue, self.uuid = session.run(sql.FIND_QUEUE, {"name": settings.name})[0]
            self._subscribers = self._numbers(
                sql.ADD_SUBSCRIBER,
                sql.FIND_SUBSCRIBERS,
                [member for group in settings.audience.groups for member in group.members],
            )
            groups = self._group_numbers(settings.audience)
            self._seats = self._seated(settings.audience, groups)
            self._groups = {number: name for name, number in groups.items()}
            self._neighbours = int(session.run(sql.COUNT_SUBSCRIBERS, {})[0][0])

    def close(self) -> None:
        """Close the connection if it is the queue's own; the queue stays."""
        self.session.close()

    def guard(self) -> None:
        """Raise Retired if the queue has moved; every write begins with this."""
        if self._run(sql.GUARD)[0][0]:
            raise Retired(f"queue {self.settings.name!r} has moved to another store: write there")

    def _check_value(self, value: bytes | None, headers: Headers) -> None:
        """Raise Stopped if the value is elsewhere: without it a message would be handled as one that has none."""
        if has_value_in_log(value, headers):
            raise Stopped(
                f"queue {self.settings.name!r} has messages whose values stay in the log, and its store does not say so: write "
                '"log+" before it again, until these are over'
            )

    def _run(self, text: str, **parameters: Any) -> list[Row]:
        return self.session.run(text, {"queue": self._queue, **parameters})

    def _write(self, text: str, **parameters: Any) -> int:
        return self.session.count(text, {"queue": self._queue, **parameters})

    def _numbers(self, add: str, find: str, names: Iterable[str]) -> dict[str, int]:
        known = {name for name, _ in self._run(find)}
        for name in names:
            if name not in known:
                self._write(add, name=name)
        return {str(name): int(number) for name, number in self._run(find)}

    def _seats_in(self, audience: Audience) -> list[Seat]:
        """Return an audience in numbers, and let its groups be known.

        Not remembered from one call to the next: the transaction that made a group known may be taken back.
        """
        return self._seated(audience, self._group_numbers(audience))

    def _group_numbers(self, audience: Audience) -> dict[str, int]:
        return self._numbers(sql.ADD_GROUP, sql.FIND_GROUPS, [group.name for group in audience.groups])

    def _seated(self, audience: Audience, groups: dict[str, int]) -> list[Seat]:
        found = seats(audience, self._subscribers, groups)
        for seat in found:
            self._write(sql.ADD_MEMBER, sub=seat.subscriber, grp=seat.group)
        return found

    def _group_names(self, numbers: Collection[int]) -> dict[int, str]:
        """Return the names of groups; those that messages have brought with them are asked for each time, as in `_seats_in`."""
        if self._groups.keys() >= set(numbers):
            return self._groups
        return {int(number): str(name) for name, number in self._run(sql.FIND_GROUPS)}

    def _subscriber(self, name: str) -> int:
        check_subscribers(self.settings, [name])
        return self._subscribers[name]

    def _together(self, handles: list[int]) -> list[int] | range:
        """Return handles that follow each other as a range, unless too many rows of others lie between theirs."""
        if not handles or self._neighbours > NEIGHBOURS_MAX:
            return handles
        handles = sorted(handles)
        run = range(handles[0], handles[0] + len(handles))
        return run if handles == list(run) else handles

    def _lock_open(self, handles: Sequence[int]) -> dict[int, Row]:
        """Return what of these is PUT or REVEALED, and keep it so: handle, state, attempt, reveal_at."""
        return {row[0]: row for row in self._run(sql.LOCK_OPEN, handles=list(handles))}

    def _rephase(self, handles: Sequence[int]) -> None:
        """Let the indexes know what became of these deliveries and of their mates in pools."""
        if handles:
            self._write(sql.REPHASE, handles=list(handles))

    def _go_on(self, rows: Sequence[Row], now: int) -> None:
        """Journal what every subscriber has journalled, and reveal the next group in order; rows are (handle, shape).

        Where a message has several subscribers, the last of them to end must see the others: one after another.
        """
        alone = [handle for handle, shape in rows if not shape & Shape.SHARED]
        if alone:
            over = self._write(sql.JOURNAL_ALONE, handles=self._together(alone))
            self.session.tally(self._queue, -over, over)
        shared = sorted({handle for handle, shape in rows if shape & Shape.SHARED})
        if not shared:
            return
        self._lock_open(shared)
        journalled = {row[0] for row in self._run(sql.JOURNAL, handles=shared)}
        self.session.tally(self._queue, -len(journalled), len(journalled))
        self._write(sql.JOURNALLED_AT, handles=sorted(journalled), now=now)
        ordered = {handle for handle, shape in rows if shape & Shape.ORDERED} - journalled
        if ordered:
            shown = {row[0] for row in self._run(sql.NEXT_TURN, handles=sorted(ordered))}
            self._rephase(sorted(shown))


def once(asked: Iterable[int], changed: Iterable[int]) -> list[bool]:
    """Answer for each one asked whether it changed; of a handle asked twice only the first did."""
    left = set(changed)
    answers = []
    for handle in asked:
        answers.append(handle in left)
        left.discard(handle)
    return answers


def too_large(settings: QueueSettings, size: int) -> Refused:
    """Say that an edited message exceeds the queue's bound."""
    return Refused(
        f"the edited message would have {size} bytes, queue {settings.name!r} takes {settings.message_bytes}:"
        " raise its bound or write less"
    )
