"""A queue's connection to PostgreSQL: COPY for what arrives, arrays for what changes, and every error by what it means.

A commit that was answered is on the server's disk (``synchronous_commit`` is raised if it was off).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from relay.message.errors import ConfigError, InDoubt
from relay.queue.alerts import CHANNEL
from relay.queue.port import Refused, StoreAway, StoreFull
from relay.queue.settings import QueueSettings
from relay.queue.stores import sql_text
from relay.queue.stores.sql_queue import SqlQueue
from relay.queue.stores.sql_session import Arriving, Collided, Repeated, Row
from relay.queue.stores.sql_text import DELIVERY, MESSAGE, OPEN, Columns, copy, postgresql_text
from relay.queue.stores.sql_values import arrivals
from relay.resources.addresses import connected
from relay.resources.patience import Awaited, await_on
from relay.resources.postgresql import (
    AS_WRITTEN,
    UNLIMITED,
    before_names,
    leaves_commit_open,
    own_cursor,
)
from relay.resources.postgresql_pooler import refuse_shared
from relay.resources.postgresql_states import only_reads, takes_no_writes

Connection = psycopg.Connection[Any]
IDLE_LIMIT_S: Final = 30
"""The server ends a unit whose worker says nothing for so long: frozen inside it, it would hold up all others with its locks."""
LOOKING_S: Final = 50.0
"""What a statement that looks through millions of messages may take longer than others, before its connection is given up."""
TALLY_ROWS_MAX: Final = 256
"""So many rows are summed up into one by whoever asks how many wait."""
_COLLISIONS: Final = frozenset({"40001", "40P01"})
_FULL: Final = frozenset({"53100"})
_TOO_LONG: Final = "54000"
"""Of an index entry; the driver takes it for an error of operation, as which it would be tried again for ever."""
_LISTS: Final = (list, range)
_OWN: Final = re.compile(rb"\brelay_queue\w*")
"""What is called so in a statement is a table or sequence of ours."""
_MISSING: Final = frozenset({"42P01", "42703"})
_NO_RIGHT: Final = "42501"
_NOT_NOW: Final = frozenset({"25006", "25P03", "25P04"})
"""Read-only, as after a failover; or ended by the server for having lasted too long. Nothing of it was committed."""
# Lookups are by key and by partial index, whatever the planner believes of tables that grow and shrink by the second.
_SETTINGS: Final = b"""
select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') in ('off', 'local');
set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off; set enable_sort = on; set jit = off
"""
# An address may say how long, too.
_END_IDLE: Final = b"""
select set_config('idle_in_transaction_session_timeout', %s, false)
where current_setting('idle_in_transaction_session_timeout') = '0'
"""
_LAGS: Final = """
select coalesce(pg_sequence_last_value('relay_queue_handle'), 0) < (select max(handle) from relay_queue_message)
"""
_SUM_UP: Final = b"""
with gone as (
    delete from relay_queue_tally where ctid = any(array(
        select ctid from relay_queue_tally where queue = %(queue)s for update skip locked
    )) returning waiting, over
)
insert into relay_queue_tally (queue, waiting, over) select %(queue)s, sum(waiting), sum(over) from gone
having count(*) > 0
"""


class PostgresqlSession:
    """A `Session` of its own at an address, or one bound to somebody's connection, whose open transaction then decides."""

    counts_cheaply = False

    def __init__(self, opened: str | Connection, before: bytes = b"") -> None:
        """``before`` goes before the names of the queue's tables."""
        self._url = opened if isinstance(opened, str) else None
        self._connection = None if isinstance(opened, str) else opened
        self._before = before
        self._awaited: Awaited | None = None
        self._depth = 0
        self._text: dict[str, bytes] = {}
        self._named: dict[bytes, bytes] = {}

    def _connected(self) -> Connection:
        if self._connection is None or (self._connection.closed and self._url is not None):
            assert self._url is not None
            assert self._depth == 0, "a connection that was lost inside a unit is not replaced inside it"
            with _judged(committing=False):
                self.close()
                connection, given = connected(self._url, prepare_threshold=None)
                try:
                    self._awaited = await_on(connection.fileno())
                    with self._awaited.asking():
                        refuse_shared("the queue's database", connection, given)
                        connection.execute(_SETTINGS)
                        connection.execute(AS_WRITTEN)
                        connection.execute(UNLIMITED)
                        connection.execute(_END_IDLE, (f"{IDLE_LIMIT_S}s",))
                except OSError as error:
                    connection.close()
                    raise StoreAway("no further connection can be watched: this process is at one of its limits (`ulimit -a`)") from error
                except BaseException:
                    connection.close()
                    raise
                self._connection = connection
        return self._connection

    def _asking(self) -> AbstractContextManager[None]:
        """Somebody's connection is theirs to watch."""
        return nullcontext() if self._awaited is None else self._awaited.asking(LOOKING_S)

    @property
    def inside(self) -> bool:
        """Whether a unit is open."""
        if self._connection is None or self._connection.closed:
            return self._depth > 0
        return self._depth > 0 or self._connection.info.transaction_status != TransactionStatus.IDLE

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Begin, and commit durably; inside another transaction a savepoint."""
        name = f"relay_queue_{self._depth}".encode() if self.inside else None
        connection = self._connected()
        with _judged(committing=False), self._asking():
            if name is not None:
                own_cursor(connection).execute(b"savepoint " + name)
            elif connection.autocommit:
                own_cursor(connection).execute(b"begin isolation level read committed")
        self._depth += 1
        try:
            with _judged(committing=False):
                yield
        except BaseException as error:
            with suppress(psycopg.Error), self._asking():  # a lost connection has taken it back already
                own_cursor(connection).execute(b"rollback" if name is None else b"rollback to " + name + b"; release " + name)
            if name is None and only_reads(error):
                self.close()
            raise
        else:
            with _judged(committing=name is None), self._asking():
                own_cursor(connection).execute(b"commit" if name is None else b"release " + name)
        finally:
            self._depth -= 1

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See one state of the database in several statements."""
        if self.inside:
            yield
            return
        connection = self._connected()
        with _judged(committing=False):
            with self._asking():
                connection.execute(b"begin isolation level repeatable read read only")
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                with suppress(psycopg.Error), self._asking():
                    connection.execute(b"rollback")

    def run(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one statement and fetch what it returns."""
        return self._execute(text, parameters).fetchall()

    def count(self, text: str, parameters: Mapping[str, Any]) -> int:
        """Run one statement that writes and return how many rows it met."""
        return self._execute(text, parameters).rowcount

    def _execute(self, text: str, parameters: Mapping[str, Any]) -> psycopg.Cursor[Any]:
        prepared = self._text.get(text)
        if prepared is None:
            prepared = self._text[text] = self._found(postgresql_text(text))
        given = {name: _array(name, v) if type(v) in _LISTS else v for name, v in parameters.items()}
        cursor = own_cursor(self._connected(), binary=True)
        judged = nullcontext() if self._depth else _judged(committing=False)
        with judged, self._asking():
            return cursor.execute(prepared, given)

    def many(self, text: str, rows: Sequence[Row]) -> None:
        """Run one statement for each row."""
        connection = self._connected()
        with self._asking(), own_cursor(connection) as cursor:
            cursor.executemany(self._found(text.replace("?", "%s").encode()), rows)

    def arrive(self, arriving: Arriving) -> None:
        """Insert new messages."""
        rows = arrivals(arriving)
        try:
            self._copy(OPEN, rows.opened)
        except psycopg.errors.UniqueViolation as error:
            raise Repeated("one of the messages waits already") from error
        self._copy(MESSAGE, rows.messages)
        self._copy(DELIVERY, rows.deliveries)

    def _copy(self, columns: Columns, rows: Sequence[Row]) -> None:
        needed, fitted = columns.fitted(rows)
        connection = self._connected()
        with self._asking(), own_cursor(connection) as cursor, cursor.copy(self._found(copy(columns.table, needed))) as copying:
            for row in fitted:
                copying.write_row(row)

    def lock_groups(self, subscriber: int) -> None:
        """Let nobody else take for this subscriber's groups until the unit ends."""
        self.run(sql_text.LOCK_GROUPS, {"sub": subscriber})

    def handles(self, queue: int, count: int) -> list[int]:
        """Draw handles: those of two who draw at once may alternate."""
        del queue  # one sequence serves all queues
        return [row[0] for row in self.run(sql_text.DRAW, {"limit": count})]

    def raise_handles(self, queue: int, above: int) -> None:
        """Let handles drawn later be above this one."""
        del queue
        self.run(sql_text.RAISE, {"handle": above})

    def tally(self, queue: int, waiting: int, over: int) -> None:
        """Add to how many messages wait, and how many are over: nobody waits for another who counts."""
        statement = b"insert into relay_queue_tally (queue, waiting, over) values (%s, %s, %s)"
        self._say(statement, (queue, waiting, over))

    def tallied(self, queue: int) -> tuple[int, int]:
        """Return how many messages wait, and how many are over."""
        ((waiting, over, rows, reading),) = self.run(sql_text.TALLIED, {"queue": queue})
        if rows > TALLY_ROWS_MAX and reading == "off":
            self._say(_SUM_UP, {"queue": queue})
        return waiting, over

    def tell(self, queue: str) -> None:
        """Wake who listens, when the unit is committed."""
        self._say(b"select pg_notify(%s, %s)", (CHANNEL, queue))

    def _say(self, statement: bytes, parameters: Sequence[Any] | Mapping[str, Any]) -> None:
        connection = self._connected()
        with self._asking():
            own_cursor(connection).execute(self._found(statement), parameters)

    def _found(self, statement: bytes) -> bytes:
        """Return a statement that finds the queue's tables whatever the owner of the connection has said of `search_path`."""
        named = self._named.get(statement)
        if named is None:
            named = self._named[statement] = _OWN.sub(lambda own: self._before + own[0], statement)
        return named

    def close(self) -> None:
        """Close the connection if it was opened here."""
        if self._url is not None and self._connection is not None:
            self._connection.close()
        if self._awaited is not None:
            self._awaited.close()


def _array(name: str, values: Sequence[Any]) -> Any:
    return values if name in sql_text.TEXT_LISTS else "{" + ",".join(map(str, values)) + "}"


@contextmanager
def _judged(*, committing: bool) -> Iterator[None]:
    """Turn PostgreSQL's errors into what the caller must do; none holds a value of a message or an address."""
    try:
        yield
    except psycopg.errors.UniqueViolation:
        raise
    except psycopg.Error as error:
        state = error.sqlstate
        if committing and leaves_commit_open(error):
            # The answer is lost or says nothing of the commit, which may have been heard: in doubt.
            raise InDoubt("the answer to the commit of a queue's states was lost: read them again") from error
        if state in _COLLISIONS:
            raise Collided("another writer was in the way: try again") from error
        if state in _FULL:
            raise StoreFull("the queue's database cannot grow: make room on its disk") from error
        if takes_no_writes(error):
            raise StoreAway(
                f"the queue's database does not write now ({error.diag.message_primary}): vacuum it, or end the transaction that a "
                "listener has left open"
            ) from error
        if state == _TOO_LONG:
            raise Refused(
                "the id and the publisher of a message are longer than PostgreSQL keeps in an index (2,704 bytes): shorten them"
            ) from error
        if state in _MISSING:
            raise ConfigError("the queue's tables are missing or old; run `relay migrate`") from error
        if state == _NO_RIGHT:
            # The server's sentence names the table or sequence, never a value.
            raise ConfigError(
                f"the role has no right to the queue's tables ({error.diag.message_primary}); grant select, insert, update "
                "and delete on all relay_queue tables, usage and update on the sequence relay_queue_handle"
            ) from error
        if state in _NOT_NOW:
            raise StoreAway(f"the queue's database does not write now ({type(error).__name__})") from error
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            # A client's own sentence, without a state, tells why there is no connection; it holds no password.
            why = type(error).__name__ if state else (str(error).splitlines() or [type(error).__name__])[0]
            raise StoreAway(f"the queue's database does not answer ({why})") from error
        raise


def open_postgresql(settings: QueueSettings, url: str) -> SqlQueue:
    """Open a queue on a connection of its own; the tables are those of `relay migrate`.

    Raises ConfigError where handles would be given once more: order and the names of attempts rest on them.
    """
    queue = SqlQueue(settings, PostgresqlSession(url))
    ((lags,),) = queue.session.run(_LAGS, {})
    if lags:
        queue.close()
        raise ConfigError(
            "the sequence relay_queue_handle is behind the queue's messages, as in a copy by logical replication, and would number "
            "new ones before old ones; run `relay migrate`, which raises it"
        )
    return queue


def bind_postgresql(settings: QueueSettings, connection: Connection) -> SqlQueue:
    """Return the queue over somebody's connection: its transaction, where one is open, decides on what is written.

    The tables are those that the connection finds now, whatever a transaction of its owner's says of `search_path`.
    """
    with _judged(committing=False):
        before = before_names(connection, "relay_queue")
    return SqlQueue(settings, PostgresqlSession(connection, before))
