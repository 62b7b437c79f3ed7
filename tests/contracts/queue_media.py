"""Where a queue of the contract suite lies, one line per medium: how to open it, and open it again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relay.queue.message import Audience, Group, NewMessage, Parent, Place, Taken, Ticket
from relay.queue.port import Filter, Holder, QueueStore, StoreAway
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import open_store
from tests.contracts.queue_book import QueueBook
from tests.simulation.database_connection import Connection
from tests.simulation.database_queue import bind_simulated
from tests.simulation.databases import Database
from tests.simulation.still import StillWorld

NOW = 1_700_000_000_000
"""When the tests begin, milliseconds; a test adds to it, no clock is read."""
LATER = NOW + 1_000
HOLDER, OTHER = b"holder-1", b"holder-2"
PARENT = Parent("inbound", 7, "clerk")
"""What every child of the tests was made from."""
MEDIA = ["book", "sqlite", "postgresql", "files", "log"]
"""Every store there is; the book is the reference."""
SIMULATED = "simulated"
"""The store of a database over the session of a simulated one: what the simulator shows on it holds for the real ones."""


@dataclass
class Log:
    """A log in memory, with a place for each value that was appended."""

    values: dict[Place, bytes | None] = field(default_factory=dict)
    away: bool = False

    def append(self, message: NewMessage) -> NewMessage:
        """Append the value, and return the message with its place."""
        if message.value is None:
            return message
        place = Place("orders", "id", len(self.values) % 3, len(self.values))
        self.values[place] = message.value
        return message._replace(place=place)

    def read(self, places: Sequence[Place]) -> dict[Place, bytes | None]:
        if self.away:
            raise StoreAway("the log is away")
        return {place: self.values[place] for place in places if place in self.values}

    def close(self) -> None:
        pass


@dataclass
class Medium:
    """One place for queues. Every `open` of one name opens the same queue; the book forgets it instead."""

    name: str
    url: str
    state: Path
    opened: list[QueueStore] = field(default_factory=list)
    log: Log = field(default_factory=Log)
    simulated: Database = field(default_factory=lambda: Database(StillWorld()))

    def open(self, settings: QueueSettings) -> QueueStore:
        if self.name == "book":
            store: QueueStore = QueueBook(settings)
        elif self.name == SIMULATED:
            store = bind_simulated(settings, Connection(self.simulated, "queue"))
        else:
            store = open_store(settings, self.url, state=self.state, values=self.log)
        if self.name == "log":
            put = store.put
            store.put = lambda new, now, **over: put(list(map(self.log.append, new)), now, **over)  # type: ignore[method-assign]
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            store.close()


Open = Callable[..., QueueStore]


def medium_of(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Medium:
    """Return the medium by its name; a database is asked for only by the medium that needs it."""
    urls: dict[str, Callable[[], str]] = {
        "book": lambda: "book:",
        "sqlite": lambda: "sqlite:///queues.db",
        "log": lambda: "log+sqlite:///queues.db",
        "files": lambda: "files:///queues",
        SIMULATED: lambda: "simulated:",
        "postgresql": lambda: str(request.getfixturevalue("queue_database")),
    }
    return Medium(name, urls[name](), tmp_path)


def subscribers(*names: str | tuple[str, ...], in_order: bool = False) -> Audience:
    """Return an audience: a name is a subscriber, a tuple a pool with the name of its members."""
    groups = [
        Group(name, (name,)) if isinstance(name, str) else Group("+".join(name), name) for name in names
    ]
    return Audience(tuple(groups), in_order)


def settings(*names: str | tuple[str, ...], in_order: bool = False, **over: Any) -> QueueSettings:
    """Return a queue of a name of its own, for the subscribers named."""
    return QueueSettings(
        f"q{secrets.token_hex(6)}", subscribers(*(names or ("ann",)), in_order=in_order), **over
    )


def message(name: str, **over: Any) -> NewMessage:
    """Return a message of publisher ``shop`` with the id and the value of its name."""
    return NewMessage(**{"publisher": "shop", "id": name, "value": name.encode(), **over})


def child(name: str, **over: Any) -> NewMessage:
    """Return a child of `PARENT` that the attempt ``t`` puts."""
    return message(name, **{"parents": (PARENT,), "attempt": "t", **over})


def put(store: QueueStore, *names: str, now: int = NOW, **over: Any) -> list[int]:
    """Put messages of these names and return their handles."""
    return [answer.handle for answer in store.put([message(name, **over) for name in names], now)]


def enter(store: QueueStore, subscriber: str = "ann", holder: bytes = HOLDER) -> None:
    """Make a worker known."""
    store.enter(Holder(holder, subscriber, 0, None))


def opened(medium: Medium, *names: str | tuple[str, ...], in_order: bool = False, **over: Any) -> QueueStore:
    """Open a new queue and enter a worker ``HOLDER`` for its first subscriber, and one called after each of the others."""
    store = medium.open(settings(*names, in_order=in_order, **over))
    members = [member for group in store.settings.audience.groups for member in group.members]
    enter(store, members[0])
    for member in members:
        enter(store, member, member.encode())
    return store


def take(
    store: QueueStore, subscriber: str = "ann", holder: bytes | None = None, now: int = NOW, limit: int = 100
) -> list[Taken]:
    return store.take(subscriber, holder or subscriber.encode(), limit, now)


def ids(taken: list[Taken]) -> list[str]:
    return [one.id for one in taken]


def tickets(taken: list[Taken]) -> list[Ticket]:
    return [one.ticket for one in taken]


def state(store: QueueStore, handle: int) -> PublisherState:
    view = store.view(handle)
    assert view is not None
    return view.state


def states(store: QueueStore, handle: int) -> dict[str, SubscriberState]:
    view = store.view(handle)
    assert view is not None
    return {row.subscriber: row.state for row in view.subscribers}


def full_view(store: QueueStore) -> object:
    return store.find(Filter(), limit=1000), store.holders()


def cycle(store: QueueStore, subscriber: str = "ann", now: int = NOW) -> list[str]:
    """Take and finish everything there is for a subscriber."""
    taken = take(store, subscriber, now=now)
    assert store.finish(subscriber, tickets(taken), now) == [True] * len(taken)
    return ids(taken)
