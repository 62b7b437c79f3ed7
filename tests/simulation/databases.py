"""A transactional database in memory: row locks, READ COMMITTED, one commit after the other, and a network before it.

What a server does is done by `Backend`, at the moment a request arrives; the client's side and the network between
stand in `database_connection`. A crash keeps what was committed and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from tests.simulation.database_tables import RELAY_TABLES
from tests.simulation.scheduler import Waiters, World

Row = dict[str, Any]
Key = tuple[Any, ...]
Place = tuple[str, Key]
T = TypeVar("T")

FOREVER: Final = float("inf")


class StatementRefused(Exception):
    """The server's error answer; ``code`` is PostgreSQL's name of the condition. The transaction has failed."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code} {detail}".strip())
        self.code = code


class ConnectionLost(Exception):
    """No answer will come on this connection; whether the request took effect is unknown."""


@dataclass(slots=True)
class Table:
    """Rows by their unique key; without one, every row has a number nobody sees."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...] = ()
    check: Callable[[Row], str | None] | None = None
    references: list[tuple[str, str, str]] = field(default_factory=list)
    """(column, other table, its column), looked at when a transaction commits."""
    rows: dict[Key, Row] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def key_of(self, row: Row) -> Key:
        """Return the row's key, a new number if the table has none."""
        return tuple(row[name] for name in self.key) if self.key else (next(self.numbers),)


class Commit(NamedTuple):
    """One committed transaction, in commit order: what each place held before and after."""

    number: int
    at: float
    by: str
    changes: list[tuple[str, Key, Row | None, Row | None]]


@dataclass(slots=True)
class Weather:
    """What the network and the server do to requests: probabilities, and seconds as (from, to)."""

    latency_s: tuple[float, float] = (0.0002, 0.002)
    request_lost: float = 0.0
    commit_request_lost: float = 0.0
    commit_answer_lost: float = 0.0
    commit_held: float = 0.0
    hold_s: tuple[float, float] = (0.5, 20.0)
    unnoticed: float = 0.0
    """How often the server learns only after ``unnoticed_s`` that a client is gone."""
    unnoticed_s: tuple[float, float] = (2.0, 15.0)


class Database:
    """The server and what is on its disk."""

    def __init__(self, world: World, name: str = "shop") -> None:
        self.world = world
        self.name = name
        self.process = world.process(f"database {name}")
        self.tables: dict[str, Table] = {}
        self.locks: dict[Place, Backend] = {}
        self.waiting: dict[Place, Waiters] = {}
        self.history: list[Commit] = []
        self.weather = Weather()
        self.applied = 0
        """The identity column of the inbox: drawn at the insert, not given back by a rollback."""
        self.numbers: Counter[str] = Counter()
        """Other sequences, by name."""
        self.mirror: object = None
        """Of whoever runs SQL on it."""
        self.backends: set[Backend] = set()
        self.up_at = 0.0
        self.crashes = 0

    def create(self, table: Table) -> Table:
        """Add a table unless it is there."""
        return self.tables.setdefault(table.name, table)

    def create_relay_tables(self, uuid: str) -> None:
        """Do what `relay migrate` does."""
        for name, columns, key in RELAY_TABLES:
            self.create(Table(name, columns, key))
        if not self.tables["relay_resource"].rows:
            self.tables["relay_resource"].rows[True,] = {"uuid": uuid, "single": True}

    def spawn(self, name: str, target: Callable[[], None]) -> None:
        """Do work in a task of the server's."""
        tasks = self.process.tasks
        if len(tasks) > 200:
            tasks[:] = [task for task in tasks if not task.done]
        self.world.spawn(self.process, name, target)

    def rows(self, table: str) -> list[Row]:
        """Return what is committed now."""
        return list(self.tables[table].rows.values())

    def crash(self, down_s: float) -> None:
        """End the server: open transactions are gone, connections break, nobody can connect for a while."""
        self.crashes += 1
        self.world.trace("database", self.name, "crashes for", round(down_s, 3))
        self.up_at = self.world.now + down_s
        for backend in list(self.backends):
            backend.terminate()

    def next_applied(self) -> int:
        """Draw the next number of the inbox."""
        self.applied += 1
        return self.applied

    def next_number(self, sequence: str) -> int:
        """Draw from a sequence."""
        self.numbers[sequence] += 1
        return self.numbers[sequence]

    def backup(self) -> tuple[dict[str, dict[Key, Row]], int]:
        """Return a copy of what is committed."""
        return {name: dict(table.rows) for name, table in self.tables.items()}, self.applied

    def restore(self, backup: tuple[dict[str, dict[Key, Row]], int], down_s: float) -> None:
        """Go back to a backup, as after the loss of the disk."""
        self.crash(down_s)
        copy, self.applied = backup
        changes: list[tuple[str, Key, Row | None, Row | None]] = []
        for name, table in self.tables.items():
            then = copy.get(name, {})
            changes += [
                (name, key, table.rows.get(key), then.get(key))
                for key in {**table.rows, **then}
                if table.rows.get(key) != then.get(key)
            ]
            table.rows = dict(then)
        self.history.append(Commit(len(self.history) + 1, self.world.now, "restore", changes))


class Backend:
    """The server's side of one connection: at most one transaction, its writes unseen by others until it commits."""

    def __init__(self, database: Database, label: str, lock_timeout_s: float, idle_limit_s: float) -> None:
        self.database = database
        self.label = label
        self.alive = True
        self.pending = 0
        self.busy_since: float | None = None
        self._lock_timeout_s = lock_timeout_s
        self._idle_limit_s = idle_limit_s
        self._idle_since = database.world.now
        self._gone_at: float | None = None
        self._writes: dict[Place, Row | None] | None = None
        self._failed = False
        self._held: set[Place] = set()
        self._savepoints: list[tuple[int, dict[Place, Row | None]]] = []
        self.serial = 0
        self._waits_for: Backend | None = None
        self._waits_at: Waiters | None = None
        database.backends.add(self)

    @property
    def in_transaction(self) -> bool:
        """Is a transaction open?"""
        return self._writes is not None

    def begin(self) -> None:
        """Begin a transaction."""
        assert self._writes is None, "a transaction is open already"
        self._writes, self._failed, self._savepoints = {}, False, []
        self.serial += 1

    def commit(self) -> None:
        """Commit: everything at once, durable at once; a failed transaction is rolled back and refused."""
        if self._writes is None:
            return
        if self._failed:
            self.rollback()
            raise StatementRefused("in_failed_sql_transaction", "rolled back instead")
        writes, database = self._writes, self.database
        for (name, _), row in writes.items():
            for column, other, their in database.tables[name].references if row else ():
                if all(found[their] != row[column] for found in self.scan(other)):
                    self.rollback()
                    raise StatementRefused("foreign_key_violation", name)
        changes = []
        for (name, key), row in writes.items():
            rows = database.tables[name].rows
            changes.append((name, key, rows.get(key), row))
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
        if changes:
            database.history.append(Commit(len(database.history) + 1, database.world.now, self.label, changes))
        self._end()

    def rollback(self) -> None:
        """Forget what the transaction wrote."""
        self._end()

    def savepoint(self, number: int) -> None:
        """Remember what is written so far."""
        assert self._writes is not None
        self._refuse_if_failed()
        self._savepoints.append((number, dict(self._writes)))

    def rollback_to(self, number: int) -> None:
        """Go back to a savepoint and forget it; this is the only way out of a failed statement but rolling back."""
        while self._savepoints:
            found, writes = self._savepoints.pop()
            if found == number:
                self._writes, self._failed = writes, False
                return
        raise StatementRefused("invalid_savepoint_specification", str(number))

    def release(self, number: int) -> None:
        """Forget a savepoint and those set after it."""
        self._refuse_if_failed()
        while self._savepoints and self._savepoints.pop()[0] != number:
            pass

    def get(self, table: str, key: Key) -> Row | None:
        """Read one row as this transaction sees it now."""
        self._refuse_if_failed()
        place = (table, key)
        if self._writes and place in self._writes:
            return self._writes[place]
        return self._table(table).rows.get(key)

    def scan(self, table: str, where: Callable[[Row], bool] | None = None) -> list[Row]:
        """Read rows as this transaction sees them now."""
        return [row for _, row in self.items(table, where)]

    def items(self, table: str, where: Callable[[Row], bool] | None = None) -> list[tuple[Key, Row]]:
        """Read rows with their keys."""
        self._refuse_if_failed()
        seen: dict[Key, Row | None] = dict(self._table(table).rows)
        for (name, key), row in (self._writes or {}).items():
            if name == table:
                seen[key] = row
        return [(key, row) for key, row in seen.items() if row is not None and (where is None or where(row))]

    def written(self, tables: Container[str]) -> object:
        """Return what tells this transaction's writes from those of others, None if it wrote to none of these tables."""
        self._refuse_if_failed()
        return self._writes if any(name in tables for name, _ in self._writes or ()) else None

    def insert(self, table: str, row: Row, *, or_nothing: bool = False) -> bool:
        """Insert a row; a row of the same key that is not decided yet is waited for. False: it was there."""
        found = self._table(table)
        row = {name: row.get(name) for name in found.columns}
        key = found.key_of(row)
        self.lock(table, key)
        if self.get(table, key) is not None:
            if or_nothing:
                return False
            raise StatementRefused("unique_violation", table)
        self.put(table, key, row)
        return True

    def put(self, table: str, key: Key, row: Row | None) -> None:
        """Write a row, or delete it, under its lock."""
        assert self._writes is not None, "writes happen inside a transaction"
        self.lock(table, key)
        check = self._table(table).check
        if row is not None and check is not None and (fault := check(row)) is not None:
            raise StatementRefused(fault, table)
        self._writes[table, key] = row

    def lock(self, table: str, key: Key) -> None:
        """Take a row's lock, held until the transaction ends; what was read before may have changed meanwhile."""
        self._refuse_if_failed()
        place = (table, key)
        holder = self.database.locks.get(place)
        if holder is self:
            return
        if holder is not None:
            self._wait_for(place)
        self.database.locks[place] = self
        self._held.add(place)

    def autocommit(self, work: Callable[[Backend], T]) -> T:
        """Run one statement outside any transaction."""
        self.begin()
        try:
            found = work(self)
        except BaseException:
            self.rollback()
            raise
        self.commit()
        return found

    def serve(self, work: Callable[[Backend], T]) -> T:
        """Do what a request asks for; an error fails the transaction. Raises ConnectionLost if this side is dead."""
        self.reap()
        self.pending -= 1
        if not self.alive:
            raise ConnectionLost
        self.busy_since = self.database.world.now
        try:
            return work(self)
        except StatementRefused:
            self._failed = self._writes is not None
            raise
        finally:
            self.busy_since = None
            self._idle_since = self.database.world.now

    def terminate(self) -> None:
        """End the connection at the server's side, which rolls back."""
        if self.alive:
            self.alive = False
            self._end()
            self.database.backends.discard(self)
            if self._waits_at is not None:
                self._waits_at.wake_all()

    def reap(self) -> float:
        """End what idles in a transaction too long, or whose client is gone; return when to look again.

        A request under way was sent before the client closed, so it still takes effect.
        """
        now = self.database.world.now
        if self.busy_since is not None or self._writes is None:
            return FOREVER if self._gone_at is None else max(self._gone_at, now + 0.01)
        ends = self._idle_since + self._idle_limit_s
        if not self.pending and self._gone_at is not None:
            ends = min(ends, self._gone_at)
        if now >= ends:
            self.terminate()
        return ends

    def left_by_client(self) -> None:
        """The client has closed the connection, or is dead: noticed after a while, when open work is rolled back."""
        world, weather = self.database.world, self.database.weather
        quick = not weather.unnoticed or world.rng.random() >= weather.unnoticed
        after_s = world.rng.uniform(0.0, 0.02) if quick else world.rng.uniform(*weather.unnoticed_s)
        self._gone_at = min(self._gone_at or FOREVER, world.now + after_s)
        world.at(after_s, self.reap)

    def _wait_for(self, place: Place) -> None:
        world, locks = self.database.world, self.database.locks
        deadline = world.now + self._lock_timeout_s
        waiters = self._waits_at = self.database.waiting.setdefault(place, Waiters(world))
        try:
            while (holder := locks.get(place)) is not None:
                look_again = holder.reap()
                if place not in locks:
                    break
                self._waits_for = holder
                if self._is_circle():
                    raise StatementRefused("deadlock_detected")
                if world.now >= deadline:
                    raise StatementRefused("lock_not_available")
                left = min(deadline, look_again) - world.now
                waiters.wait(None if left == FOREVER else max(left, 0.001))
                if not self.alive:
                    raise ConnectionLost
        finally:
            self._waits_for = self._waits_at = None

    def _is_circle(self) -> bool:
        other = self._waits_for
        while other is not None and other is not self:
            other = other._waits_for
        return other is self

    def _table(self, name: str) -> Table:
        found = self.database.tables.get(name)
        if found is None:
            raise StatementRefused("undefined_table", name)
        return found

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise StatementRefused("in_failed_sql_transaction")

    def _end(self) -> None:
        self._writes, self._failed, self._savepoints = None, False, []
        for place in self._held:
            self.database.locks.pop(place, None)
            waiters = self.database.waiting.pop(place, None)
            if waiters is not None:
                waiters.wake_all()
        self._held = set()
