"""A queue's connection to an SQLite file: WAL with ``synchronous=FULL``, so that a unit that ended survives a power cut.

One writer at a time holds the file, so that a batch of any size costs one fsync, and no statement needs a lock of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

import orjson

from relay.message.errors import InDoubt
from relay.queue.alerts import BOARD
from relay.queue.port import StoreAway, StoreFull
from relay.queue.settings import QueueSettings
from relay.queue.stores.sql_queue import SqlQueue
from relay.queue.stores.sql_schema import create
from relay.queue.stores.sql_session import Arriving, Repeated, Row, Seat
from relay.queue.stores.sql_text import (
    MESSAGE,
    OPEN_ARRIVED,
    deliveries_arrived,
    insert,
    seat_names,
    sqlite_text,
)
from relay.queue.stores.sql_values import message_rows, number_of_lane, sees_at_once

BUSY_TIMEOUT_S: Final = 15.0
"""How long a unit waits for the file's other writers."""
CACHE_KIB: Final = 64 * 1024
CHECKPOINT_PAGES: Final = 4_000
"""A delivery's page is written with each of its states: copied into the file once for several of them."""
ROWS_AT_ONCE: Final = 20
"""Messages that one statement inserts: more of them gain nothing."""
_FULL: Final = (sqlite3.SQLITE_FULL,)
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_REMEDIES: Final = {
    sqlite3.SQLITE_READONLY: "let the relay write it and the folder that it lies in",
    sqlite3.SQLITE_CANTOPEN: "let the relay read and write it and the folder that it lies in, and open more files (`ulimit -n`)",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; correct the path, or restore it",
}


class SqliteSession:
    """A `Session` of its own on a file, or one bound to somebody's connection, whose open transaction then decides."""

    counts_cheaply = True

    def __init__(self, opened: Path | sqlite3.Connection) -> None:
        self._own = not isinstance(opened, sqlite3.Connection)
        self._connection = opened if isinstance(opened, sqlite3.Connection) else _open(opened)
        self._depth = 0
        self._told: set[str] = set()
        self._text: dict[tuple[str, bool], str] = {}
        self._numbers_lanes = False

    @property
    def inside(self) -> bool:
        """Whether a unit is open."""
        return self._depth > 0 or self._connection.in_transaction

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Begin, and commit durably; inside another transaction a savepoint."""
        name = f"relay_queue_{self._depth}" if self.inside else None
        with _judged(committing=False):
            self._connection.execute("begin immediate" if name is None else f"savepoint {name}")
        self._depth += 1
        try:
            with _judged(committing=False):
                yield
        except BaseException:
            with suppress(sqlite3.Error):  # a transaction that SQLite has ended already has nothing to take back
                if name is None:
                    self._connection.execute("rollback")
                else:
                    self._connection.execute(f"rollback to {name}")
                    self._connection.execute(f"release {name}")
            raise
        else:
            self._end(name)
        finally:
            self._depth -= 1

    def _end(self, savepoint: str | None) -> None:
        if savepoint is not None:
            with _judged(committing=False):
                self._connection.execute(f"release {savepoint}")
            return
        try:
            with _judged(committing=True):
                self._connection.execute("commit")
            while self._told:
                BOARD.tell(self._told.pop())
        except BaseException:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
            raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See one state of the file in several statements."""
        if self.inside:
            yield
            return
        with _judged(committing=False):
            self._connection.execute("begin deferred")
            try:
                yield
            finally:
                self._connection.execute("rollback")

    def run(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one statement and fetch what it returns."""
        return self._execute(text, parameters).fetchall()

    def count(self, text: str, parameters: Mapping[str, Any]) -> int:
        """Run one statement that writes and return how many rows it met."""
        return self._execute(text, parameters).rowcount

    def _execute(self, text: str, parameters: Mapping[str, Any]) -> sqlite3.Cursor:
        handles = parameters.get("handles")
        together = type(handles) is range
        prepared = self._text.get((text, together))
        if prepared is None:
            prepared = self._text[text, together] = sqlite_text(text, together=together)
        given = {k: orjson.dumps(v).decode() if type(v) is list else v for k, v in parameters.items()}
        if isinstance(handles, range):
            given |= {"handles": None, "first": handles[0], "last": handles[-1]}
        return self._connection.execute(prepared, given)

    def many(self, text: str, rows: Sequence[Row]) -> None:
        """Run one statement for each row."""
        self._connection.executemany(text, rows)

    def arrive(self, arriving: Arriving) -> None:
        """Insert new messages; from these rows follow the others, which costs less than to bind their values."""
        self._insert_messages(arriving)
        at = {"queue": arriving.queue}
        try:
            self.count(OPEN_ARRIVED, {**at, "handles": range(arriving.handles[0], arriving.handles[-1] + 1)})
        except sqlite3.IntegrityError as error:
            raise Repeated("one of the messages waits already") from error
        self._let_lanes_be_numbered()
        first = arriving.handles[0]
        for seats, same in groupby(audience for _, audience in arriving.given):
            last = first + len(list(same)) - 1
            self.count(deliveries_arrived(len(seats)), {**at, **_numbered(seats), "handles": range(first, last + 1)})
            first = last + 1

    def _insert_messages(self, arriving: Arriving) -> None:
        needed, rows = MESSAGE.fitted(message_rows(arriving))
        paged = len(rows) - len(rows) % ROWS_AT_ONCE
        pages = (rows[first : first + ROWS_AT_ONCE] for first in range(0, paged, ROWS_AT_ONCE))
        text = insert(MESSAGE.table, needed, ROWS_AT_ONCE)
        self._connection.executemany(text, (tuple(chain.from_iterable(page)) for page in pages))
        self._connection.executemany(insert(MESSAGE.table, needed), rows[paged:])

    def _let_lanes_be_numbered(self) -> None:
        """Make `lane_number` known to the connection, whose owner may have open cursors: so only where it is unknown."""
        if self._numbers_lanes:
            return
        try:
            self._connection.execute("select relay_lane_number(x'')").fetchall()
        except sqlite3.OperationalError:
            self._connection.create_function("relay_lane_number", 1, number_of_lane, deterministic=True)
        self._numbers_lanes = True

    def lock_groups(self, subscriber: int) -> None:
        """The file has one writer at a time."""

    def handles(self, queue: int, count: int) -> range:
        """Draw handles: they follow each other."""
        statement = "update relay_queue set last = last + ? where id = ? returning last"
        (last,) = self._connection.execute(statement, (count, queue)).fetchall()[0]
        return range(last - count + 1, last + 1)

    def raise_handles(self, queue: int, above: int) -> None:
        """Let handles drawn later be above this one."""
        self._connection.execute("update relay_queue set last = max(last, ?) where id = ?", (above, queue))

    def tally(self, queue: int, waiting: int, over: int) -> None:
        """Add to how many messages wait, and how many are over."""
        statement = "update relay_queue set waiting = waiting + ?, over = over + ? where id = ?"
        self._connection.execute(statement, (waiting, over, queue))

    def tallied(self, queue: int) -> tuple[int, int]:
        """Return how many messages wait, and how many are over."""
        (row,) = self._connection.execute("select waiting, over from relay_queue where id = ?", (queue,)).fetchall()
        return row[0], row[1]

    def tell(self, queue: str) -> None:
        """Wake who waits in this process, after the commit; other processes see that the file has changed."""
        self._told.add(queue)

    def close(self) -> None:
        """Close the file if it was opened here."""
        if self._own:
            self._connection.close()


def _numbered(seats: Sequence[Seat]) -> dict[str, int]:
    """Return the parameters of `deliveries_arrived`."""
    given: dict[str, int] = {}
    for number, seat in enumerate(seats):
        now = int(sees_at_once(seat))
        values = (seat.subscriber, seat.group, seat.shape, seat.turn, seat.position, now)
        given.update(zip(seat_names(number), values, strict=True))
    return given


def _open(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreAway(
            f"the queue's folder {path.parent} cannot be made ({error.strerror}): make room there, or let the relay write there"
        ) from error
    with _judged(committing=False):
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma temp_store = memory")
        connection.execute(f"pragma cache_size = -{CACHE_KIB}")
        connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("begin immediate")
        create(connection)
        connection.execute("commit")
    return connection


@contextmanager
def _judged(*, committing: bool) -> Iterator[None]:
    """Turn SQLite's errors into what the caller must do; none holds a value of a message."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF
        if code in _FULL:
            raise StoreFull("the queue's database file cannot grow: make room on its disk") from error
        if code in _BUSY:
            # Not committed, and still open: rolled back by the caller.
            raise StoreAway("another writer holds the queue's database file: try again later") from error
        if committing:
            # The disk failed while it wrote: what is in the file, only reading it again tells.
            raise InDoubt("the commit to the queue's database file failed: read the states again") from error
        raise _unusable(error) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise _unusable(error) from error


def _unusable(error: sqlite3.DatabaseError) -> StoreAway:
    remedy = _REMEDIES.get(error.sqlite_errorcode & 0xFF, "look at its disk, and restore it if it is damaged")
    return StoreAway(f"the queue's database file cannot be used ({error.sqlite_errorname}): {remedy}")


def open_sqlite(settings: QueueSettings, path: Path) -> SqlQueue:
    """Open a queue in a file of its own or one that it shares with others; the file and its tables are made if need be."""
    return SqlQueue(settings, SqliteSession(path))


def bind_sqlite(settings: QueueSettings, connection: sqlite3.Connection) -> SqlQueue:
    """Return the queue over somebody's connection: its transaction, where one is open, decides on what is written."""
    return SqlQueue(settings, SqliteSession(connection))
