"""Queues in a simulated database: production's own store and statements, over a session whose every statement travels.

What a statement sees (what is committed, and its own transaction's writes) is laid into an SQLite in memory, where it
runs as `relay.queue.stores.sqlite` runs it; what it changed is written under row locks, as PostgreSQL takes them. Where
one of these was another transaction's, it runs again on what that one left: so does READ COMMITTED. Handles come from a
sequence, which no rollback gives back, and what waits is counted in rows of its own.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final, TypeVar

from relay.message.errors import InDoubt
from relay.queue.message import Place
from relay.queue.port import StoreAway
from relay.queue.settings import QueueSettings
from relay.queue.stores.log import LogQueue
from relay.queue.stores.sql_queue import SqlQueue
from relay.queue.stores.sql_schema import create
from relay.queue.stores.sql_session import Arriving, Collided, Repeated
from relay.queue.stores.sql_text import DELIVERY, MESSAGE, OPEN, insert
from relay.queue.stores.sql_values import arrivals
from relay.queue.stores.sqlite import SqliteSession
from relay.world import clock
from tests.simulation.database_connection import Connection
from tests.simulation.databases import Backend, ConnectionLost, Database, Key, Row, StatementRefused, Table

T = TypeVar("T")

MESSAGES: Final = "relay_queue_message"
OPENED: Final = "relay_queue_open"
DELIVERIES: Final = "relay_queue_delivery"
HOLDERS: Final = "relay_queue_holder"
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "relay_queue": ("id",),
    "relay_queue_subscriber": ("id",),
    "relay_queue_group": ("id",),
    "relay_queue_member": ("sub", "grp"),
    MESSAGES: ("handle", "queue"),
    OPENED: ("handle", "queue"),
    DELIVERIES: ("handle", "sub"),
    HOLDERS: ("queue", "id"),
    "relay_queue_attempt": ("attempt", "queue"),
    "relay_queue_tally": ("number",),
}
UNIQUE: Final[dict[str, tuple[str, ...]]] = {
    "relay_queue_subscriber": ("queue", "name"),
    "relay_queue_group": ("queue", "name"),
    OPENED: ("id", "publisher", "queue"),
}
"""What else is unique: of two who insert the same one waits for the other."""
_TALLY: Final = "create table relay_queue_tally (number integer primary key, queue integer, waiting integer, over integer)"
_LOCKS: Final = re.compile(r"^select handle.* from (\w+)\b.*<lock>\s*$", re.DOTALL)
_FIRST_SAVEPOINT: Final = 100
_REDONE_MAX: Final = 50
OTHERS_DRAW: Final = 0.1
VALUES_AWAY: Final = 0.03


class _OnMirror(SqliteSession):
    """How statements run at the server: SQLite's, but for what PostgreSQL counts and numbers in another way."""

    def __init__(self, connection: sqlite3.Connection, database: Database) -> None:
        super().__init__(connection)
        self._of = database

    def arrive(self, arriving: Arriving) -> None:
        rows = arrivals(arriving)
        for columns, some in ((OPEN, rows.opened), (MESSAGE, rows.messages), (DELIVERY, rows.deliveries)):
            self._connection.executemany(insert(columns.table, columns.all), some)

    def tally(self, queue: int, waiting: int, over: int) -> None:
        number = self._of.next_number("tally")
        row = (number, queue, waiting, over)
        self._connection.execute("insert into relay_queue_tally (number, queue, waiting, over) values (?, ?, ?, ?)", row)

    def tallied(self, queue: int) -> tuple[int, int]:
        asked = "select coalesce(sum(waiting), 0), coalesce(sum(over), 0) from relay_queue_tally where queue = ?"
        waiting, over = self._connection.execute(asked, (queue,)).fetchone()
        return waiting, over


class Mirror:
    """One SQLite for each database; between two statements it holds what the last of them saw."""

    def __init__(self, database: Database) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        create(self._connection)
        self._connection.execute(_TALLY)
        self._connection.execute("create temp table changed (name, first, second)")
        self._held: dict[str, dict[Key, Row]] = {}
        self._columns: dict[str, list[str]] = {}
        self._holds: tuple[int, object] | None = None
        """After how many commits what is held was read, and what its transaction had written, if anything."""
        for name, key in KEYS.items():
            columns = [row[0] for row in self._connection.execute("select name from pragma_table_info(?)", (name,))]
            self._columns[name] = columns
            database.create(Table(name, dict.fromkeys(columns, ""), key))
            self._held[name] = {}
            for event, row in (("insert", "new"), ("update", "new"), ("delete", "old")):
                told = ", ".join(f"{row}.{column}" for column in key) + (", null" if len(key) == 1 else "")
                self._connection.execute(
                    f"create temp trigger {name}_{event} after {event} on main.{name} "
                    f"begin insert into changed values ('{name}', {told}); end"
                )
        self._session = _OnMirror(self._connection, database)

    def run(
        self, backend: Backend, work: Callable[[SqliteSession], T], found_is_locked: str | None = None, holder: Key | None = None
    ) -> T:
        """Run one statement as a transaction sees it; ``found_is_locked`` names the table whose rows it locks, ``holder`` whom
        it locks if it finds one."""
        for _ in range(_REDONE_MAX):
            found, changes = self._once(backend, work)
            wanted = [(name, key) for name, key, _ in changes]
            wanted += [(f"unique {name}", tuple(row[c] for c in UNIQUE[name])) for name, _, row in changes if row and name in UNIQUE]
            if found_is_locked:
                assert isinstance(found, list)
                queues = {key[1] for key in self._held[found_is_locked]}
                wanted += [(found_is_locked, (row[0], queue)) for row in found for queue in queues]
            if holder and found:
                wanted.append((HOLDERS, holder))
            if self._lock(backend, wanted):
                continue
            for name, key, row in changes:
                backend.put(name, key, row)
            if changes:
                self._holds = None
            return found
        raise StatementRefused("lock_not_available", "others were in the way again and again")

    def read(self, backend: Backend, work: Callable[[SqliteSession], T]) -> T:
        """Run one statement that neither writes nor locks."""
        self._load(backend)
        return work(self._session)

    def _once(self, backend: Backend, work: Callable[[SqliteSession], T]) -> tuple[T, list[tuple[str, Key, Row | None]]]:
        self._load(backend)
        connection = self._connection
        connection.execute("begin")
        try:
            found = work(self._session)
            changed = connection.execute("select distinct name, first, second from changed").fetchall()
            changes = []
            for name, *both in changed:
                key = tuple(both[: len(KEYS[name])])
                row = self._row(name, key)
                if row != self._held[name].get(key):
                    changes.append((name, key, row))
        except sqlite3.IntegrityError as error:
            raise StatementRefused("unique_violation", str(error)) from None
        finally:
            connection.execute("rollback")
        return found, sorted(changes, key=lambda change: change[:2])

    @staticmethod
    def _lock(backend: Backend, wanted: Iterable[tuple[str, Key]]) -> bool:
        """Lock rows; True if one of them was another's, so that it may not be any more what was seen."""
        waited = False
        for name, key in wanted:
            waited = waited or backend.database.locks.get((name, key)) not in (None, backend)
            backend.lock(name, key)
        return waited

    def _row(self, name: str, key: Key) -> Row | None:
        columns = self._columns[name]
        where = " and ".join(f"{column} is ?" for column in KEYS[name])
        row = self._connection.execute(f"select {', '.join(columns)} from {name} where {where}", key).fetchone()
        return None if row is None else dict(zip(columns, row, strict=True))

    def _load(self, backend: Backend) -> None:
        own = backend.written(KEYS)
        if self._holds is not None and self._holds[0] == len(backend.database.history) and self._holds[1] is own:
            return
        self._holds = len(backend.database.history), own
        for name, held in self._held.items():
            seen = dict(backend.items(name))
            gone = [key for key in held if key not in seen]
            new = [(key, row) for key, row in seen.items() if held.get(key) is not row]
            if gone:
                where = " and ".join(f"{column} is ?" for column in KEYS[name])
                self._connection.executemany(f"delete from {name} where {where}", gone)
            if new:
                marks = ", ".join("?" for _ in new[0][1])
                rows = [tuple(row.values()) for _, row in new]
                self._connection.executemany(f"insert or replace into {name} ({', '.join(new[0][1])}) values ({marks})", rows)
            if gone or new:
                self._held[name] = seen
                self._connection.execute("delete from changed")


class SimulatedQueueSession:
    """A `Session` on a client's connection to a simulated database, as `PostgresqlSession`: every call travels."""

    counts_cheaply = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._depth = 0

    @property
    def inside(self) -> bool:
        """Whether a unit, or the transaction of the connection's owner, is open."""
        return self._depth > 0 or self._connection.in_transaction

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Begin, and commit; inside another transaction a savepoint."""
        name = _FIRST_SAVEPOINT + self._depth if self.inside else None
        call = self._connection.call
        with _judged(committing=False):
            call(lambda backend: backend.begin() if name is None else backend.savepoint(name), what="begin")
        self._depth += 1
        try:
            with _judged(committing=False):
                yield
        except BaseException:
            with suppress(ConnectionLost, StatementRefused):  # a lost connection has taken it back already
                call(lambda backend: backend.rollback() if name is None else backend.rollback_to(name), what="rollback")
            raise
        else:
            with _judged(committing=name is None):
                if name is None:
                    call(lambda backend: backend.commit(), commits=True, what="commit")
                else:
                    call(lambda backend: backend.release(name), what="release")
        finally:
            self._depth -= 1

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See one state in several statements: nobody who asks for that is under test beside writers."""
        yield

    def run(self, text: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run one statement and fetch what it returns."""
        locks = _LOCKS.match(text)
        if f"from {HOLDERS} " in text and ("<share>" in text or "<lock>" in text):
            # Nobody else shares a worker's own row: one kind of lock does for both.
            holder = (parameters["queue"], parameters["holder"])
            return self._ask(lambda session: session.run(text, parameters), holder=holder)
        assert locks or "<lock>" not in text, text
        if text.startswith("select") and not locks:
            return self._call(lambda backend: mirror_of(backend.database).read(backend, lambda session: session.run(text, parameters)))
        return self._ask(lambda session: session.run(text, parameters), locks and locks[1])

    def count(self, text: str, parameters: Mapping[str, Any]) -> int:
        """Run one statement that writes and return how many rows it met."""
        return self._ask(lambda session: session.count(text, parameters))

    def many(self, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run one statement for each row."""
        self._ask(lambda session: session.many(text, rows))

    def arrive(self, arriving: Arriving) -> None:
        """Insert new messages; raises Repeated if one is there already."""
        try:
            self._ask(lambda session: session.arrive(arriving))
        except StatementRefused as refused:
            if refused.code != "unique_violation":
                raise
            raise Repeated("one of the messages waits already") from None

    def lock_groups(self, subscriber: int) -> None:
        """Let nobody else take for this subscriber's groups until the unit ends."""

        def work(backend: Backend) -> None:
            for row in backend.scan("relay_queue_member", lambda row: row["sub"] == subscriber):
                backend.lock("relay_queue_group", (row["grp"],))

        self._call(work)

    def handles(self, queue: int, count: int) -> list[int]:
        """Draw handles: no rollback gives them back, and others may draw some in between."""
        del queue

        def work(backend: Backend) -> list[int]:
            database = backend.database
            found = []
            for _ in range(count):
                if database.world.rng.random() < OTHERS_DRAW:
                    database.next_number("handle")
                found.append(database.next_number("handle"))
            return found

        return self._call(work)

    def raise_handles(self, queue: int, above: int) -> None:
        """Let handles drawn later be above this one."""
        del queue

        def work(backend: Backend) -> None:
            numbers = backend.database.numbers
            numbers["handle"] = max(numbers["handle"], above)

        self._call(work)

    def tally(self, queue: int, waiting: int, over: int) -> None:
        """Add to how many messages wait, and how many are over."""
        self._ask(lambda session: session.tally(queue, waiting, over))

    def tallied(self, queue: int) -> tuple[int, int]:
        """Return how many messages wait, and how many are over."""
        return self._call(lambda backend: mirror_of(backend.database).read(backend, lambda session: session.tallied(queue)))

    def tell(self, queue: str) -> None:
        """Nobody listens: subscribers look now and then."""

    def close(self) -> None:
        """The connection is its owner's."""

    def _ask(self, work: Callable[[SqliteSession], T], found_is_locked: str | None = None, holder: Key | None = None) -> T:
        return self._call(lambda backend: mirror_of(backend.database).run(backend, work, found_is_locked, holder))

    def _call(self, work: Callable[[Backend], T]) -> T:
        if self.inside:
            return self._connection.call(work, what="queue")
        with _judged(committing=False):
            return self._connection.call(lambda backend: backend.autocommit(work), what="queue")


def mirror_of(database: Database) -> Mirror:
    """Return the database's mirror; with the first one the queues' tables are made."""
    if database.mirror is None:
        database.mirror = Mirror(database)
    assert isinstance(database.mirror, Mirror)
    return database.mirror


def bind_simulated(settings: QueueSettings, connection: Connection) -> SqlQueue:
    """Return the queue over somebody's connection, as `bind_postgresql` does."""
    return SqlQueue(settings, SimulatedQueueSession(connection))


class SimulatedValues:
    """Reads the values of a queue back that keeps them in the log; now and then the log does not answer."""

    def __init__(self, topics: Mapping[str, Any], rng: Random) -> None:
        self._topics = topics
        self._rng = rng

    def read(self, places: Sequence[Place]) -> dict[Place, bytes | None]:
        """Return the values that are there."""
        clock.sleep(self._rng.choice((0.0, 0.001, 0.02)))
        if self._rng.random() < VALUES_AWAY:
            raise StoreAway("the log does not answer")
        found = {}
        for place in places:
            topic = self._topics[place.topic]
            if topic.topic_id.hex() == place.topic_id:
                there = (one for one in topic.partitions[place.partition].records if one.offset() == place.offset)
                found.update((place, one.value()) for one in there)
        return found

    def close(self) -> None:
        """Nothing is held."""


def bind_simulated_log(values: SimulatedValues) -> Callable[[QueueSettings, Connection], SqlQueue]:
    """Return what binds queues that have their values in the log."""
    return lambda settings, connection: LogQueue(settings, SimulatedQueueSession(connection), values)


def create_queue(database: Database, name: str, uuid: str) -> None:
    """Do what `relay migrate` does for a queue."""
    mirror_of(database)
    row = {"id": 1, "name": name, "uuid": uuid, "retired": 0, "last": 0, "waiting": 0, "over": 0}
    database.tables["relay_queue"].rows[1,] = row


@contextmanager
def _judged(*, committing: bool) -> Iterator[None]:
    """Turn errors into what the caller must do, as the session of PostgreSQL does."""
    try:
        yield
    except ConnectionLost:
        if committing:
            raise InDoubt("the answer to the commit of a queue's states was lost: read them again") from None
        raise StoreAway("the queue's database does not answer") from None
    except StatementRefused as refused:
        if refused.code == "deadlock_detected":
            raise Collided("another writer was in the way: try again") from None
        if refused.code == "lock_not_available":
            raise StoreAway("the queue's database does not answer (lock_not_available)") from None
        raise
