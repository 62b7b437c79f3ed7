"""The connection of a cursor in PostgreSQL: made when it is first needed, lent for a transaction, and what its loss means then."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import sql

from relay.delivery.table import range_rows
from relay.delivery.table.postgresql import inbox_rows, position
from relay.delivery.table.postgresql.effects import Connection, Effect, qualified
from relay.delivery.table.postgresql.failures import judge
from relay.delivery.table.row_search import RowFault
from relay.delivery.table.verdicts import Limits, TablePlan
from relay.message.errors import InDoubt, Retriable
from relay.resources.postgresql import UNLIMITED, PostgresqlResource, leaves_commit_open
from relay.resources.postgresql_states import only_reads
from relay.world import schedule

STATEMENTS: Final = {
    "claim": position.CLAIM,
    "move": position.MOVE,
    "first": inbox_rows.FIRST,
    "rest": inbox_rows.REST,
    "arrive or not": inbox_rows.ARRIVE_OR_NOT,
    "known": inbox_rows.KNOWN,
    "revive": inbox_rows.REVIVE,
    "kill": inbox_rows.KILL,
    "read": inbox_rows.READ,
    "trim": inbox_rows.TRIM,
    "hold": position.HOLD,
    "put range": range_rows.PUT,
    "drop range": range_rows.DROP,
    "read ranges": range_rows.READ,
}


class CursorConnection:
    """One connection at a time, with the statements of a cursor and the ``effect`` for the types that its table had."""

    def __init__(
        self,
        url: str,
        plan: TablePlan,
        limits: Limits,
        effects: Callable[[Connection], Effect],
        met: Callable[[psycopg.Error], object],
    ) -> None:
        """``met`` is told of what a COMMIT was refused for that may be one row's doing."""
        self._resource = PostgresqlResource(plan.resource, url, limits.lock_timeout_s)
        self._plan = plan
        self._limits = limits
        self._effects = effects
        self._met = met
        self.names: Final = {"relay": plan.relay, "route": plan.route}
        self._connection: Connection | None = None
        # Held while the connection is replaced, so that abandoning never closes a descriptor of somebody else.
        self._replacing = schedule.lock()
        self._statements: dict[str, bytes] = {}
        self._committing = self._doubting = False
        self.effect: Effect | None = None

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Lend the connection; whatever goes wrong, no transaction of ours is left open on it.

        A connection lost after COMMIT was sent is in doubt, as is an error that is no word about it; any other means that
        nothing was written.
        """
        connection = self._connected()
        self._committing = self._doubting = False
        try:
            yield connection
        except psycopg.Error as error:
            lost = connection.closed or connection.broken
            self._roll_back(connection)
            if only_reads(error):
                self.drop()
            if self._doubting and not lost:
                self._met(error)
            if self._committing and (lost or leaves_commit_open(error)):
                # In doubt: found out by delivering again, when the inbox decides.
                raise InDoubt(f"{self._plan.where}: COMMIT was not answered ({type(error).__name__}); its outcome is unknown") from None
            if lost:
                raise Retriable(f"{self._plan.where}: the connection was lost before COMMIT; nothing was written") from None
            raise judge(error, self._plan, doubts=self._doubting) from None
        except BaseException:
            self._roll_back(connection)
            raise

    def run(
        self, connection: Connection, name: str, parameters: Mapping[str, Any], *, binary: bool = False
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement of ``STATEMENTS``; relay and route are given to each."""
        return connection.execute(self._statements[name], {**self.names, **parameters}, binary=binary)

    def copy(self, connection: Connection, name: str, data: bytes) -> None:
        """Send what a COPY of ``STATEMENTS`` takes."""
        with connection.cursor() as cursor, cursor.copy(self._statements[name]) as copy:
            copy.write(data)

    def commit(self, connection: Connection, *, doubts: bool = False) -> None:
        """Commit; ``doubts`` if a refusal may be one row's doing, by what is deferred until then."""
        self._committing, self._doubting = True, doubts
        if connection.execute("commit").statusmessage != "COMMIT":
            raise Retriable(f"{self._plan.where}: the transaction had been aborted; nothing was written")

    def abandon(self) -> None:
        """Shut the connection's socket down: the thread that waits on it gets an error at once."""
        with self._replacing:
            connection = self._connection
            if connection is None or connection.closed:
                return
            # A duplicate is shut down, which ends the connection itself and leaves the descriptor to its owner.
            # The library lets go of one that breaks in this moment by itself.
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Close the connection; the server rolls back what it has of a transaction, and the next one reads the types."""
        with self._replacing:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _roll_back(self, connection: Connection) -> None:
        try:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("rollback")
        except psycopg.Error:
            self.drop()  # the server rolls back what it has of it
        if connection.closed or connection.broken:
            self.drop()

    def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self.drop()
        limits, plan = self._limits, self._plan
        connection = self._resource.connect(
            lock_timeout=limits.lock_timeout_s,
            statement_timeout=limits.statement_timeout_s,
            idle_in_transaction_session_timeout=limits.idle_in_transaction_s,
        )
        with self._replacing:
            self._connection = connection  # before it is set up: what never answers then is abandoned, too
        try:
            connection.execute("select set_config('application_name', %s, false)", [f"relay:{plan.route}"])
            connection.execute("set client_encoding = 'UTF8'")
            connection.execute(UNLIMITED)
            places = {name: qualified(connection, f"relay_{name}", plan) for name in ("position", "inbox", "range")}
            self._statements = {
                name: sql.SQL(text).format(**places).as_bytes(connection) for name, text in STATEMENTS.items()
            }
            self.effect = self._effects(connection)
        except psycopg.Error as error:
            self.drop()
            failure = judge(error, plan)
            raise (Retriable(str(failure)) if isinstance(failure, RowFault) else failure) from None
        except BaseException:
            self.drop()
            raise
        return connection
