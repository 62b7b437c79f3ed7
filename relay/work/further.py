"""Effects in further databases: prepared under the attempt's name before it is decided, committed or rolled back after it.

Presumed abort: what a dead worker leaves prepared is finished by the outcome that stands where the attempt decides, and
by nothing else (`relay.queue.recovery.Recovery.prepared`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
import structlog

from relay.message.errors import ConfigError, RelayError, Retriable, Stopped, Unreachable
from relay.resources import begun
from relay.resources.postgresql import reaching
from relay.resources.postgresql_states import is_fit
from relay.resources.prepared import EffectTransaction
from relay.work.away import is_postgresqls, notes_time_is_over, time_is_over
from relay.work.desk import TIME_OVER, TimeOver, check_call
from relay.work.desk_postgresql import refuse_if_ended
from relay.work.desks import LeftToTheRelay
from relay.work.given import Given
from relay.world import clock, schedule

Connect = Callable[[], psycopg.Connection[Any]]
SAID_S: Final = 30.0
"""So often it is said that a further database is away: every message that waits for it would say the same."""


class Connections:
    """Lends connections to one further database, at most ``limit`` at once; who wants one more waits."""

    def __init__(self, resource: str, connect: Connect, limit: int) -> None:
        self.resource = resource
        self._connect = connect
        self._silent_until = 0.0
        self._free = schedule.fifo()
        for _ in range(limit):
            self._free.put(None)

    def borrow(self) -> psycopg.Connection[Any]:
        """Return a connection without a transaction; raises Unreachable."""
        kept: psycopg.Connection[Any] | None = self._free.get()
        if kept is not None and not kept.closed:
            return kept
        try:
            return self._connected()
        except BaseException:
            self._free.put(None)
            raise

    def _connected(self) -> psycopg.Connection[Any]:
        try:
            connection = self._connect()
        except (ConfigError, Stopped) as wrong:
            # Wait: a person must mend it, and no message has done anything wrong.
            raise Unreachable(str(wrong)) from wrong
        try:
            with reaching(self.resource):
                begun.say_none(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def give_back(self, connection: psycopg.Connection[Any]) -> None:
        """Take a connection back; one with an open transaction is closed, and one that only reads."""
        usable = is_fit(connection)
        if not usable:
            connection.close()
        self._free.put(connection if usable else None)

    def say_away(self, error: Exception) -> None:
        """Say, now and then, that messages wait for this database: nothing else would, since no failure of them is counted."""
        now = clock.monotonic()
        if now < self._silent_until:
            return
        self._silent_until = now + SAID_S
        # Of a statement's error no text: it may hold a payload.
        driver = error if isinstance(error, psycopg.Error) else error.__cause__
        state = driver.sqlstate if isinstance(driver, psycopg.Error) else None
        why = {"reason": str(error)} if isinstance(error.__cause__, RelayError) else {}
        structlog.get_logger("relay.work").warning(
            "messages wait for a further database", resource=self.resource, kind=type(error).__name__, state=state, **why
        )

    def close(self) -> None:
        """Close what is not lent now."""
        with suppress(schedule.Empty):
            while True:
                kept: psycopg.Connection[Any] | None = self._free.get_nowait()
                if kept is not None:
                    kept.close()


class FurtherDatabase(LeftToTheRelay):
    """What a handler writes with into a further database: its first statement begins, and it commits if the resource does."""

    def __init__(self, relay: str, attempt: str, connections: Connections) -> None:
        self._relay = relay
        self._attempt = attempt
        self._connections = connections
        self._effect: EffectTransaction | None = None
        self._process = os.getpid()
        self._turn = schedule.lock()
        self._is_over = False
        self._given = Given()
        self._time_is_over = False
        self.said: BaseException | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the handler has used it."""
        return self._effect is not None

    def execute(self, query: Any, params: Any = None) -> Any:
        """Run one statement and return the driver's cursor; placeholders are the driver's."""
        with self._turn, self._noting():
            return self._given.add(self._begun().execute(query, params))

    def executemany(self, query: Any, params: Sequence[Any]) -> Any:
        """Run one statement for each of many parameters."""
        with self._turn, self._noting():
            cursor = self._given.add(self._begun().cursor())
            cursor.executemany(query, params)
            return cursor

    def end(self) -> None:
        """Let the statement that runs end, and none begin any more: the handler has returned."""
        # Said first: who has waited for its turn finds it said, however many wait.
        self._is_over = True
        with self._turn:
            self._given.close()

    def prepare(self) -> None:
        """Prepare what the handler wrote; raises Unreachable (in doubt: recovery looks for it), or the driver's error if
        what was written is refused, or TimeOver if the handler went on after it was told so."""
        if self._time_is_over:
            raise TimeOver(TIME_OVER)
        if self._effect is not None:
            with self._noting():
                self._effect.prepare()

    def finish(self) -> bool:
        """Commit, since the attempt is decided; False if this is in doubt: recovery commits it if it is still there."""
        if self._effect is None:
            return True
        try:
            self._effect.finish()
        except RelayError:
            # Decided already, so whatever is in the way: recovery finishes it, and says what that is.
            return False
        finally:
            self._done()
        return True

    def give_up(self) -> None:
        """Roll back, since the attempt is not decided and will not be."""
        if self._effect is not None:
            self._effect.give_up()
            self._done()

    def leave(self) -> None:
        """Leave it prepared: nobody here knows how the attempt ended, and recovery finds out."""
        if self._effect is not None:
            self._effect.connection.close()
            self._done()

    def is_away(self, error: BaseException) -> bool:
        """Tell whether the connection broke, or the server does not write now."""
        is_broken = self._effect is not None and self._effect.connection.broken
        return not self._time_is_over and is_postgresqls(error, closed=is_broken)

    def is_time_over(self, error: BaseException) -> bool:
        """Tell whether an error came of a transaction here that took too long, and was ended for it."""
        return self._is_closed and (self._time_is_over or time_is_over(error))

    @property
    def _is_closed(self) -> bool:
        return self._effect is not None and self._effect.connection.closed

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Let an operator see what a message waits for."""
        try:
            yield
        except (Retriable, Unreachable, psycopg.Error) as error:
            self._time_is_over = self._time_is_over or self.is_time_over(error)
            if not isinstance(error, psycopg.Error) or self.is_away(error):
                self._connections.say_away(error)
                self.said = error
            raise

    def _begun(self) -> psycopg.Connection[Any]:
        check_call(self._process, is_over=self._is_over)
        if self._effect is None:
            connection = self._connections.borrow()
            try:
                self._effect = EffectTransaction(
                    self._relay, self._connections.resource, self._attempt, connection
                )
            except BaseException:
                self._connections.give_back(connection)
                raise
            connection.add_notice_handler(self._hear)
        refuse_if_ended(self._effect.connection)
        return self._effect.connection

    def _hear(self, said: psycopg.errors.Diagnostic) -> None:
        self._time_is_over = self._time_is_over or notes_time_is_over(said)

    def _done(self) -> None:
        effect, self._effect = self._effect, None
        assert effect is not None, "asked for above"
        effect.connection.remove_notice_handler(self._hear)
        self._connections.give_back(effect.connection)


class Further:
    """All further databases of one run, in the order in which the handler names them."""

    def __init__(self, databases: Sequence[FurtherDatabase] = ()) -> None:
        self.databases = databases

    @property
    def is_begun(self) -> bool:
        """Whether the handler has used any."""
        return bool(self.databases) and any(one.is_begun for one in self.databases)

    def prepare(self) -> None:
        """Prepare every one."""
        for one in self.databases:
            one.prepare()

    def finish(self) -> bool:
        """Commit every one; False if recovery has to find out about any."""
        finished = [one.finish() for one in self.databases]
        return all(finished)

    def give_up(self) -> None:
        """Roll back every one."""
        for one in self.databases:
            one.give_up()

    def leave(self) -> None:
        """Leave every one to recovery."""
        for one in self.databases:
            one.leave()

    def is_time_over(self, error: BaseException) -> bool:
        """Tell whether an error came of a transaction in one of them that took too long, and was ended for it."""
        return any(one.is_time_over(error) for one in self.databases)

    def has_said(self, error: BaseException) -> bool:
        """Tell whether one of them has said that messages wait for it."""
        return any(one.said is error for one in self.databases)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether one of them caused the error, and not the handler."""
        return any(one.is_away(error) for one in self.databases)
