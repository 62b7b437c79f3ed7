"""Queues and a handler's database as a simulated process reaches them: late, refused, or with a lost answer.

What is durable is a book (the reference store) and a list of effects; a transaction holds its store's gate, as SQLite's writer
does, and a process that dies inside takes everything back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, NamedTuple, cast

from relay.message.errors import InDoubt
from relay.queue.attempts import ForgettableOutcomes
from relay.queue.message import MessageView, Ticket
from relay.queue.port import QueueStore, StoreAway
from relay.queue.settings import QueueSettings
from relay.work.desk import DatabaseAway, EffectsInDoubt, TransactionTaken
from tests.contracts.queue_book import LIVE, QueueBook
from tests.contracts.queue_entry import Entry
from tests.simulation.scheduler import Process, SimLock, World

GATE_S: Final = 5.0
"""So long one waits for another's transaction; then the store is away, and nothing happened."""
WRITES: Final = frozenset({
    "put", "reveal", "reveal_due", "accept", "withdraw", "discard", "republish", "prioritise", "edit", "take", "start",
    "finish", "refuse", "free", "expire", "expire_now", "enter", "beat", "leave", "settle",
})  # fmt: skip


class Ending(NamedTuple):
    """A message that became DONE for a subscriber, in the order in which that was written."""

    queue: str
    subscriber: str
    ticket: Ticket


@dataclass
class Weather:
    """What goes wrong on the way to a store, as shares of all transactions, and how long a way takes."""

    latency_s: tuple[float, float] = (0.0005, 0.01)
    refused: float = 0.0
    lost_before: float = 0.0
    lost_after: float = 0.0


class Book(QueueBook):
    """The reference store, taken back by copies that are cheap enough for many runs."""

    def __init__(self, world: World, settings: QueueSettings, weather: Weather) -> None:
        super().__init__(settings)
        self.uuid = f"{world.rng.getrandbits(128):032x}"
        self.gate = SimLock(world)
        self.weather = weather
        self.endings: list[Ending] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """The caller's unit takes everything back."""
        yield

    def finish(self, subscriber: str, tickets: Sequence[Ticket], now: int) -> list[bool]:
        answers = super().finish(subscriber, tickets, now)
        done = [ticket for ticket, yes in zip(tickets, answers, strict=True) if yes]
        self.endings += [Ending(self.settings.name, subscriber, ticket) for ticket in done]
        return answers

    def find_all(self) -> list[MessageView]:
        """Every message, as it stands."""
        return [entry.view(value=False) for entry in self._entries.values()]

    def saved(self) -> tuple[Any, ...]:
        # What has ended stays as it is, so only the rest is copied.
        entries = {
            handle: _copied(entry) if entry.state in LIVE else entry for handle, entry in self._entries.items()
        }
        return entries, self._last, dict(self._holders), dict(self._outcomes), len(self.endings)

    def restore(self, saved: tuple[Any, ...]) -> None:
        self._entries, self._last, self._holders, self._outcomes, kept = saved
        del self.endings[kept:]


def _copied(entry: Entry) -> Entry:
    made = copy(entry)
    made.times = dict(entry.times)
    made.rows = [copy(row) for row in entry.rows]
    for row in made.rows:
        row.times = dict(row.times)
    return made


class Reach:
    """One process's way to a book: every method of the port, each a transaction of its own outside of one."""

    shared = True

    def __init__(self, world: World, book: Book) -> None:
        self._world = world
        self._book = book
        self._inside = False
        self.settings = book.settings
        self.uuid = book.uuid

    def close(self) -> None:
        """Nothing to free."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._inside:
            yield
            return
        lost = False
        _travel(self._world, self._book.weather)
        with _gate(self._world, self._book.gate, StoreAway):
            saved = self._book.saved()
            self._inside = True
            try:
                yield
                lost = _end(self._world, self._book.weather)
            except BaseException:
                self._book.restore(saved)
                raise
            finally:
                self._inside = False
        self._world.call()
        if lost:
            raise InDoubt("the answer to a commit was lost")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._book, name)

        @wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                self._world.call()
                return method(*args, **kwargs)
            if name not in WRITES:
                _travel(self._world, self._book.weather)
                # Behind whoever writes: nobody reads what is not committed.
                with _gate(self._world, self._book.gate, StoreAway):
                    return method(*args, **kwargs)
            with self.transaction():
                return method(*args, **kwargs)

        return called


class Effect(NamedTuple):
    """What a handler has written, once its transaction was committed."""

    queue: str
    handle: int
    by: str


class Shop:
    """The handlers' database; ``book`` is the queue whose states lie in it, if any."""

    def __init__(self, world: World, weather: Weather, book: Book | None) -> None:
        self.world = world
        self.weather = weather
        self.book = book
        self.gate = SimLock(world) if book is None else book.gate
        self.effects: list[Effect] = []
        self.outcomes: dict[str, bool] = {}

    def saved(self) -> tuple[Any, ...]:
        return len(self.effects), dict(self.outcomes), None if self.book is None else self.book.saved()

    def restore(self, saved: tuple[Any, ...]) -> None:
        del self.effects[saved[0] :]
        self.outcomes = saved[1]
        if self.book is not None:
            self.book.restore(saved[2])


class _Bound:
    """A book inside a desk's transaction."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.uuid = book.uuid
        self.settings = book.settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._book, name)


class Answered:
    """A cursor, of which a handler here reads nothing."""

    def close(self) -> None:
        """Nothing is open."""


class ShopDesk:
    """A connection to the shop: `relay.work.desk.Desk`."""

    def __init__(self, shop: Shop, gate: Any) -> None:
        self._shop = shop
        self._gate = gate
        self._saved: tuple[Any, ...] | None = None
        self._process: Process = _current(shop.world)
        self.stores: Mapping[str, QueueStore] = {}
        if shop.book is not None:
            self.stores = {shop.book.settings.name: cast("QueueStore", _Bound(shop.book))}
        self.outcomes: ForgettableOutcomes = self
        self._process.on_death.append(self._taken_back)

    def begin(self) -> None:
        # As SqliteDesk: the threads of one process queue before the file's own lock.
        self._gate.acquire()
        try:
            _travel(self._shop.world, self._shop.weather, DatabaseAway)
            if not self._shop.gate.acquire(timeout=GATE_S):
                raise DatabaseAway("another writer has the database")
        except BaseException:
            self._gate.release()
            raise
        self._saved = self._shop.saved()

    def execute(self, query: Any, params: Any = None) -> Answered:
        del query
        self._shop.world.sleep(self._shop.world.rng.uniform(*self._shop.weather.latency_s))
        self._shop.effects.append(Effect(*params))
        return Answered()

    def executemany(self, query: Any, params: Sequence[Any]) -> Answered:
        for one in params:
            self.execute(query, one)
        return Answered()

    def settle(self, attempt: str, *, committed: bool, now: int) -> bool:
        del now
        self._shop.world.call()
        return self._shop.outcomes.setdefault(attempt, committed)

    def forget(self, attempts: Sequence[str]) -> None:
        self._shop.world.call()
        for attempt in attempts:
            if self._shop.outcomes.get(attempt):
                del self._shop.outcomes[attempt]

    def is_away(self, error: BaseException) -> bool:
        del error
        return False

    def is_time_over(self, error: BaseException) -> bool:
        """Nobody limits the time of a transaction here."""
        return False

    def check(self) -> None:
        if self._saved is None:
            raise TransactionTaken("no transaction")

    def commit(self) -> None:
        self.check()
        try:
            lost = _end(self._shop.world, self._shop.weather)
        except InDoubt as error:
            self._taken_back()
            self._gate.release()
            raise EffectsInDoubt("the answer was lost, and nothing happened") from error
        self._saved = None
        self._shop.gate.release()
        self._gate.release()
        self._shop.world.call()
        if lost:
            raise EffectsInDoubt("the answer was lost after the commit")

    def rollback(self) -> None:
        if self._saved is not None:
            self._taken_back()
            self._gate.release()

    @property
    def usable(self) -> bool:
        return self._saved is None

    def close(self) -> None:
        self.rollback()

    def _taken_back(self) -> None:
        """Roll back: at its owner's word, or because its process died."""
        if self._saved is not None:
            saved, self._saved = self._saved, None
            self._shop.restore(saved)
            self._shop.gate.release()


def _current(world: World) -> Process:
    assert world.current is not None
    return world.current.process


def _travel(world: World, weather: Weather, away: type[Exception] = StoreAway) -> None:
    world.sleep(world.rng.uniform(*weather.latency_s))
    if world.rng.random() < weather.refused:
        raise away("the store does not answer")


def _end(world: World, weather: Weather) -> bool:
    """Pass the commit: raises InDoubt if its request is lost; True if its answer is."""
    world.call()
    chance = world.rng.random()
    if chance < weather.lost_before:
        raise InDoubt("the commit's request was lost")
    return chance < weather.lost_before + weather.lost_after


@contextmanager
def _gate(world: World, gate: SimLock, away: Callable[[str], Exception]) -> Iterator[None]:
    if not gate.acquire(timeout=GATE_S):
        raise away("another writer has the store")
    try:
        yield
    finally:
        gate.release()
