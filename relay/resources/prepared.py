"""Effects in a second PostgreSQL database: prepared first, finished by the outcome that the deciding store holds, never by age.

Presumed abort (document 003, [65] to [79], and the PostgreSQL manual on PREPARE TRANSACTION): a prepared transaction
whose attempt has no outcome is rolled back, after (aborted) was written where the attempt decides.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import errors

from relay.message.errors import ConfigError, RelayError, Unreachable
from relay.resources import begun
from relay.resources.postgresql import is_unread, own_cursor, reaching, was_closed
from relay.resources.postgresql_states import refuses_writes
from relay.world.crash import crash_point

_PREFIX: Final = "relay"
_BYTES_MAX: Final = 199
"""PostgreSQL's bound for the name of a prepared transaction."""

_LOST: Final = (psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.INERROR)


# Nobody but its owner may finish it: let that be the connection's own role, not one that the handler has set.
_BEFORE_PREPARE: Final = f"reset role; select where {begun.proof('false')}".encode()
_GONE: Final = (
    "a statement had failed and the handler went on, or it has ended the transaction itself: let errors pass, use savepoints, "
    "and leave COMMIT and ROLLBACK to the relay"
)
CLOSED: Final = "the handler has closed the connection that it was lent: leave that to the relay"
UNREAD: Final = "the handler has left a stream, a COPY or a pipeline open: read it to its end, or close it, before"


class NotPrepared(RelayError):
    """There is no transaction that could be prepared: what the handler wrote is gone."""


def prepared_name(relay: str, resource: str, attempt: str) -> str:
    """Return what an attempt's prepared transaction is called; raises ConfigError if PostgreSQL would refuse it."""
    name = f"{_prefix(relay, resource)}{attempt}"
    if len(name.encode()) > _BYTES_MAX:
        raise ConfigError(f"the prepared transaction {name!r} is over {_BYTES_MAX} bytes; shorten the names of relay, resource, queue or subscriber")
    return name


def _prefix(relay: str, resource: str) -> str:
    return f"{_PREFIX}:{relay}:{resource}:"


class PreparedEffects:
    """The prepared transactions of one relay in one database, on a connection in autocommit that no transaction uses."""

    def __init__(self, relay: str, resource: str, connection: psycopg.Connection[Any]) -> None:
        self._relay = relay
        self._resource = resource
        self._connection = connection

    def check(self) -> None:
        """Raise ConfigError unless the server allows prepared transactions (its default is none)."""
        with reaching(self._resource):
            row = self._connection.execute("show max_prepared_transactions").fetchone()
        if row is None or int(row[0]) == 0:
            raise ConfigError(
                f"resources.{self._resource}: max_prepared_transactions is 0; set it to the number of handlers at once "
                "and restart the server"
            )

    def pending(self) -> list[str]:
        """Return the attempts that have a prepared transaction here, the oldest first; another relay's are not seen."""
        prefix = _prefix(self._relay, self._resource)
        with reaching(self._resource):
            rows = self._connection.execute(
                "select gid from pg_prepared_xacts where database = current_database() and starts_with(gid, %s)"
                " order by prepared",
                (prefix,),
            ).fetchall()
        return [str(gid).removeprefix(prefix) for (gid,) in rows]

    def finish(self, attempt: str, *, committed: bool) -> bool:
        """COMMIT or ROLLBACK PREPARED by the outcome that stands; False if it was finished already.

        An answer that is lost raises Unreachable: finishing again is harmless.
        """
        name = prepared_name(self._relay, self._resource, attempt)
        try:
            with reaching(self._resource):
                if committed:
                    self._connection.tpc_commit(name)
                else:
                    self._connection.tpc_rollback(name)
        except Unreachable as refused:
            if isinstance(refused.__cause__, errors.UndefinedObject):
                return False
            raise
        return True


class EffectTransaction:
    """One attempt's effects in a further database: begin, write, prepare, and finish once the attempt is decided.

    ``connection`` is the handler's, not in autocommit, and belongs to this until it is finished or given up. What a dead
    process leaves prepared is finished by `PreparedEffects`.
    """

    def __init__(self, relay: str, resource: str, attempt: str, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._resource = resource
        name = prepared_name(relay, resource, attempt)
        with reaching(resource):
            connection.tpc_begin(name)
            begun.begin(connection)

    def prepare(self) -> None:
        """PREPARE TRANSACTION; after it the effects outlive this process.

        Its answer lost raises Unreachable: the attempt is given up by (aborted), and recovery rolls back what may be there.
        Raises NotPrepared, or PostgreSQL's own error, if what was written cannot be prepared.
        """
        # Of a transaction that has failed, or is none, the server says ROLLBACK, and that is no error: the effects are gone.
        if was_closed(self.connection):
            raise NotPrepared(f"resources.{self._resource}: {CLOSED}")
        if self.connection.info.transaction_status in _LOST:
            raise NotPrepared(f"resources.{self._resource}: {_GONE}")
        if is_unread(self.connection):
            raise NotPrepared(f"resources.{self._resource}: {UNREAD}")
        crash_point("prepared.preparing")
        try:
            with reaching(self._resource):
                own_cursor(self.connection).execute(_BEFORE_PREPARE, prepare=False)
                self.connection.tpc_prepare()
        except (Unreachable, ConfigError) as refused:
            error = _servers_word(refused.__cause__)
            if begun.is_another(self.connection, error):
                raise NotPrepared(f"resources.{self._resource}: {_GONE}") from None
            if isinstance(error, psycopg.Error) and refuses_writes(error, closed=self.connection.closed):
                # Deferred triggers run now: what they say is no word about the server, nor about the relay's tables.
                raise error from None
            raise
        crash_point("prepared.prepared")

    def finish(self) -> None:
        """COMMIT PREPARED, after the attempt was decided; an answer that is lost raises Unreachable, and recovery does it again."""
        crash_point("prepared.finishing")
        with reaching(self._resource):
            self.connection.tpc_commit()

    def give_up(self) -> None:
        """Roll back, prepared or not; a connection that does not answer is closed, and recovery does the rest."""
        if is_unread(self.connection):
            self.connection.close()
            return
        try:
            self.connection.tpc_rollback()
        except psycopg.Error:
            self.connection.close()


def _servers_word(error: BaseException | None) -> BaseException | None:
    """Return what the server has said: psycopg's PREPARE puts an error without a state in the place of 55000."""
    is_replaced = isinstance(error, psycopg.NotSupportedError) and error.sqlstate is None
    return error.__context__ if is_replaced and error is not None else error
