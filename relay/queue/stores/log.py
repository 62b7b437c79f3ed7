"""A queue whose values stay in the Kafka log: the database has the index with a place for each, and a value is read back when asked.

A value that cannot be had any more (retention, a topic made anew) ends its message: UNAVAILABLE, and UNUSABLE with the
cause for whoever would have got it. A message put without a place (a child, an edited one) keeps its value in the index.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import orjson

from relay.queue.message import MessageView, NewMessage, Place, PutAnswer, Taken
from relay.queue.port import Filter, Retired, StoreAway, ValuesAway
from relay.queue.receipt import PLACE, Headers, own_headers
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState
from relay.queue.stores.sql_queue import SqlQueue
from relay.queue.stores.sql_session import Session, unit
from relay.queue.values import Values, digest_of
from relay.world import clock

_PAGE: Final = 200
Shown = TypeVar("Shown", Taken, MessageView)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a value is to be found, and by what it is known."""

    place: Place
    digest: str


class LogQueue(SqlQueue):
    """The `QueueStore` over an index in a database and the log. Without ``values`` it can put, not take or show."""

    def __init__(self, settings: QueueSettings, session: Session, values: Values | None) -> None:
        super().__init__(settings, session)
        self._values = values

    def close(self) -> None:
        """Close the index and the reader of the log."""
        super().close()
        if self._values is not None:
            self._values.close()

    def put(self, messages: Sequence[NewMessage], now: int, *, reveal: bool = True) -> list[PutAnswer]:
        """Store the index entries of messages; see the port."""
        return super().put([_without_value(message) for message in messages], now, reveal=reveal)

    def _received(self, messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
        return messages  # a place is the queue's own by now

    def _check_value(self, value: bytes | None, headers: Headers) -> None:
        """It is read from the log."""

    @unit
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
        """AVAILABLE -> GET -> FETCHED; see the port. What has left the log is ended and not given, nor started.

        Raises ValuesAway, and nothing was taken, if the log does not answer.
        """
        taken = super().take(subscriber, holder, limit, now, without=without)
        try:
            shown, gone = self._fill(taken)
        except StoreAway as error:
            # Taken back to here: nothing was given, so nothing may stay taken, and no attempt counts.
            raise ValuesAway(str(error)) from error
        if gone:
            self.withdraw([one.ticket.handle for one, _ in gone], now)
            self.refuse(subscriber, [(one.ticket, _cause(placed)) for one, placed in gone], now)
        if start:
            self.start(subscriber, [one.ticket for one in shown], now)
        return shown

    def retire(self) -> None:
        """End what has lost its value, then refuse every later write; see the port. Else it would move with none, and be given so."""
        with suppress(Retired):
            for state in (PublisherState.PUT, PublisherState.REVEALED):
                after = 0
                while page := self.find(Filter(state=state), after=after, limit=_PAGE):
                    after = page[-1].handle
                    _, gone = self._fill(super()._views([view.handle for view in page], value=True))
                    self.withdraw([view.handle for view, _ in gone], clock.wall_ms())
        super().retire()

    def adopt(
        self, messages: Sequence[MessageView], *, uuid: str, outcomes: Sequence[tuple[str, bool]] = ()
    ) -> None:
        """Write messages of another store with their values: the index keeps those."""
        own = [replace(view, headers=own_headers(view.headers)) for view in messages]
        super().adopt(own, uuid=uuid, outcomes=outcomes)

    def _before_edit(self, headers: Headers) -> tuple[Headers, str | None]:
        # The index keeps the value from now on; the place still tells what the one before was.
        own, placed = _split(headers)
        return own, None if placed is None else placed.digest

    def _views(self, handles: Sequence[int], *, value: bool) -> list[MessageView]:
        views = super()._views(handles, value=value)
        if not value:
            return [replace(view, headers=_split(view.headers)[0]) for view in views]
        shown, gone = self._fill(views)
        shown += [replace(view, headers=_split(view.headers)[0]) for view, _ in gone]
        order = {view.handle: number for number, view in enumerate(views)}
        return sorted(shown, key=lambda view: order[view.handle])

    def _fill(self, found: Sequence[Shown]) -> tuple[list[Shown], list[tuple[Shown, Placed]]]:
        """Return what has its value, in order, and what has lost it with the place where it was."""
        parts = [_split(one.headers) for one in found]
        values = self._read([placed for _, placed in parts if placed is not None])
        shown: list[Shown] = []
        gone: list[tuple[Shown, Placed]] = []
        for one, (headers, placed) in zip(found, parts, strict=True):
            value = one.value if placed is None else values.get(placed.place)
            if placed is None or (value is not None and digest_of(value) == placed.digest):
                shown.append(_with_value(one, headers, value))
            else:
                gone.append((one, placed))
        return shown, gone

    def _read(self, wanted: list[Placed]) -> dict[Place, bytes | None]:
        if not wanted:
            return {}
        if self._values is None:
            raise StoreAway(
                f"queue {self.settings.name!r} keeps its values in the log, which is not read here"
            )
        return dict(self._values.read([placed.place for placed in wanted]))


def _with_value(one: Shown, headers: Headers, value: bytes | None) -> Shown:
    if isinstance(one, Taken):
        return one._replace(headers=headers, value=value)
    return replace(one, headers=headers, value=value)


def _without_value(message: NewMessage) -> NewMessage:
    headers = own_headers(message.headers)
    if message.place is None or message.value is None:
        return message._replace(headers=headers)
    place = orjson.dumps([*message.place, digest_of(message.value), len(message.value)])
    return message._replace(value=None, headers=(*headers, (PLACE, place)))


def _split(headers: Headers) -> tuple[Headers, Placed | None]:
    """Return the message's own headers, and the place of its value unless the index has it: an edit follows the place."""
    own = own_headers(headers)
    if not headers or headers[-1][0] != PLACE:
        return own, None
    topic, topic_id, partition, offset, digest, _ = orjson.loads(headers[-1][1] or b"")
    return own, Placed(Place(topic, topic_id, partition, offset), digest)


def _cause(placed: Placed) -> str:
    place = placed.place
    return (
        f"its value is no longer in the log at {place.topic}[{place.partition}] offset {place.offset}: "
        "the topic's retention passed it, or the topic was made anew"
    )
