"""Connections that handlers write with: lent, ended and given back, whatever fails, without a server."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from structlog.testing import capture_logs

from relay.message.errors import ConfigError, Unreachable
from relay.resources import begun
from relay.work import further
from relay.work.desk import CallOver, DatabaseAway, TimeOver
from relay.work.desks import Database, Desks
from relay.work.further import Connections, Further, FurtherDatabase
from relay.world import schedule
from tests.routes import wait_for

WAIT_S = 60.0


class FakeCursor:
    """What a statement is answered with."""

    def __init__(self, execute: Callable[..., object] = lambda *_: None) -> None:
        self.executemany = execute
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeDesk:
    """Takes down what is asked of it; ``fails`` names the step that raises."""

    kind = "postgresql"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = ""
        self.usable = True

    def _step(self, name: str) -> None:
        self.asked.append(name)
        if name == self.fails:
            raise DatabaseAway(name)

    def begin(self) -> None:
        self._step("begin")

    def execute(self, query: Any, _: Any = None) -> Any:
        self._step(query)
        return FakeCursor()

    executemany = execute

    def commit(self) -> None:
        self._step("commit")

    def rollback(self) -> None:
        self._step("rollback")

    def close(self) -> None:
        self._step("close")


def lending(*desks: FakeDesk) -> Desks:
    """Return a lender of one at a time: who asks while it is not given back waits for ever."""
    waiting = list(desks)

    def make() -> Any:
        if not waiting:
            raise Unreachable("the database does not answer")
        return waiting.pop(0)

    return Desks(make, 1)


def test_a_place_is_free_again_whether_or_not_a_connection_could_be_made_or_begun() -> None:
    failing, good = FakeDesk(), FakeDesk()
    failing.fails = "begin"
    desks = lending(failing, good)

    with pytest.raises(DatabaseAway):
        desks.borrow()
    assert failing.asked == ["begin", "close"]
    assert desks.borrow() is good
    good.usable = False
    desks.give_back(good)
    assert good.asked == ["begin", "close"]
    for _ in range(2):
        with pytest.raises(Unreachable):
            desks.borrow()


def test_a_connection_that_broke_while_nobody_had_it_is_replaced() -> None:
    broken, good = FakeDesk(), FakeDesk()
    desks = lending(broken, good)
    desks.give_back(desks.borrow())
    broken.usable = False

    assert desks.borrow() is good
    assert broken.asked == ["begin", "close"]


@pytest.mark.parametrize("fails", ["", "commit"])
def test_a_handlers_connection_is_given_back_however_its_transaction_ends(fails: str) -> None:
    desk = FakeDesk()
    desk.fails = fails
    desks = lending(desk)
    database = Database(desks)
    database.execute("insert")

    if fails:
        with pytest.raises(DatabaseAway) as found:
            database.finish()
        assert not database.is_time_over(found.value)
    else:
        database.finish()

    assert database.desk is None
    assert desk.asked == ["begin", "insert", "commit", *["rollback"] * bool(fails)]
    assert desks.borrow() is desk


def written(database: Database | FurtherDatabase) -> Callable[[], object]:
    return lambda: database.execute("select 1")


@pytest.mark.parametrize("make", [lambda: Database(lending(FakeDesk())), lambda: FurtherDatabase("shop", "a", lent())])
def test_whoever_waits_for_its_turn_when_the_handler_returns_is_refused(make: Callable[[], Database | FurtherDatabase]) -> None:
    database = make()
    database._turn.acquire()
    ending = schedule.start_thread("ending", database.end)
    wait_for(lambda: database._is_over, what="the handler's end being said while a statement runs")
    assert ending.is_alive(), "the statement that runs is waited for"
    database._turn.release()
    ending.join(WAIT_S)

    for late in (written(database), lambda: database.executemany("select 1", [])):
        with pytest.raises(CallOver, match="the handler has returned"):
            late()


@pytest.mark.parametrize(
    ("is_further", "asks"),
    [(False, "execute"), (False, "executemany"), (False, "kind"), (True, "execute"), (True, "executemany")],
)
def test_what_runs_when_the_handler_returns_is_waited_for(is_further: bool, asks: str) -> None:
    """Its desk would be borrowed for good, or its statement take effect by itself; a second one at once would borrow another."""
    begins, goes_on = schedule.event(), schedule.event()

    def connecting() -> Any:
        begins.set()
        assert goes_on.wait(WAIT_S)
        return FakeConnection() if is_further else FakeDesk()

    database: Database | FurtherDatabase = Database(Desks(connecting, 1))
    if is_further:
        database = FurtherDatabase("shop", "a", Connections("ledger", connecting, 1))

    def asking() -> None:
        asked = getattr(database, asks)
        if callable(asked):
            asked("insert", [])

    running = schedule.start_thread("running", asking)
    assert begins.wait(WAIT_S)
    ending = schedule.start_thread("ending", database.end)
    wait_for(lambda: database._is_over, what="the handler's end being said while a statement runs")
    ending.join(0.05)
    assert ending.is_alive()

    goes_on.set()
    for one in (running, ending):
        one.join(WAIT_S)
        assert not one.is_alive()


class FakeConnection:
    """A connection to a further database, as far as it is asked about."""

    def __init__(self) -> None:
        self.closed = False
        self.status = TransactionStatus.IDLE
        self.raises: BaseException | None = None
        self.hearing: list[Callable[[Any], None]] = []
        self.add_notice_handler = self.hearing.append
        self.remove_notice_handler = self.hearing.remove

    @property
    def broken(self) -> bool:
        return self.closed

    @property
    def info(self) -> Any:
        return SimpleNamespace(transaction_status=self.status, parameter_status=lambda _: "off")

    def execute(self, *_: Any) -> FakeCursor:
        if self.raises is not None:
            raise self.raises
        return FakeCursor()

    def cursor(self) -> FakeCursor:
        return FakeCursor(self.execute)

    def close(self) -> None:
        self.closed = True


class FakeEffect:
    """An attempt's transaction in a further database: takes down how it ends."""

    refuses = False

    def __init__(self, _relay: str, resource: str, attempt: str, connection: Any) -> None:
        if FakeEffect.refuses:
            raise ConfigError("its name is too long")
        self.name, self.connection = f"{resource}/{attempt}", connection
        connection.status = TransactionStatus.INTRANS
        self.ends: list[str] = []
        self.fails: BaseException | None = None

    def _end(self, how: str) -> None:
        self.ends.append(how)
        self.connection.status = TransactionStatus.IDLE
        if self.fails is not None:
            raise self.fails

    def prepare(self) -> None:
        self._end("prepared")

    def finish(self) -> None:
        self._end("committed")

    def give_up(self) -> None:
        self._end("given up")


@pytest.fixture(autouse=True)
def without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun, "say_none", lambda connection: connection.execute("say none"))
    monkeypatch.setattr(further, "EffectTransaction", FakeEffect)
    monkeypatch.setattr(FakeEffect, "refuses", False)


def lent(*connections: FakeConnection, resource: str = "ledger") -> Connections:
    """Return a lender of one at a time, of these, then of new ones."""
    waiting = list(connections)
    return Connections(resource, lambda: waiting.pop(0) if waiting else FakeConnection(), 1)  # type: ignore[arg-type,return-value]


def test_a_connection_that_cannot_be_set_up_is_closed_and_its_place_free() -> None:
    failing, good = FakeConnection(), FakeConnection()
    failing.raises = psycopg.OperationalError("gone")
    connections = lent(failing, good)

    with pytest.raises(Unreachable):
        connections.borrow()
    assert failing.closed
    assert connections.borrow() is good  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("status", [TransactionStatus.INTRANS, TransactionStatus.INERROR, TransactionStatus.ACTIVE])
def test_only_a_connection_without_a_transaction_is_lent_again(status: TransactionStatus) -> None:
    first, second = FakeConnection(), FakeConnection()
    connections = lent(first, second)
    connections.give_back(connections.borrow())
    assert connections.borrow() is first  # type: ignore[comparison-overlap]
    first.status = status
    connections.give_back(first)  # type: ignore[arg-type]
    assert first.closed
    assert connections.borrow() is second  # type: ignore[comparison-overlap]
    connections.give_back(second)  # type: ignore[arg-type]
    second.closed = True
    assert connections.borrow() not in (first, second)


def test_an_attempt_that_cannot_begin_there_keeps_no_connection() -> None:
    connections = lent()
    FakeEffect.refuses = True

    with pytest.raises(ConfigError):
        FurtherDatabase("shop", "a", connections).execute("select 1")
    connections.borrow()


class Books:
    """Two further databases of one attempt, both written to."""

    def __init__(self) -> None:
        self.connections = [FakeConnection(), FakeConnection()]
        self.lent = [lent(one, resource=f"r{number}") for number, one in enumerate(self.connections)]
        self.databases = [FurtherDatabase("shop", "a", one) for one in self.lent]
        for one in self.databases:
            one.execute("insert")
        self.effects: list[Any] = [one._effect for one in self.databases]
        self.all = Further(self.databases)

    @property
    def ends(self) -> list[list[str]]:
        return [effect.ends for effect in self.effects]

    def closed(self) -> list[bool]:
        """Take both connections back, which would wait for ever if one were kept; tell which had to be made anew."""
        return [one.borrow() is not connection for one, connection in zip(self.lent, self.connections, strict=True)]  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("fails", [None, Unreachable("the answer was lost"), ConfigError("no right to")])
def test_what_is_decided_is_committed_in_every_database_whatever_is_in_the_way_in_one(fails: BaseException | None) -> None:
    books = Books()
    books.effects[0].fails = fails

    assert books.all.finish() is (fails is None)
    assert books.ends == [["committed"], ["committed"]]
    assert books.closed() == [False, False]
    assert not books.all.is_begun
    assert books.all.finish(), "of what was not begun nothing is in doubt"


def test_what_is_given_up_is_rolled_back_in_every_database() -> None:
    books = Books()
    books.all.give_up()

    assert books.ends == [["given up"], ["given up"]]
    assert books.closed() == [False, False]


def test_what_nobody_knows_the_end_of_is_left_as_it_is_prepared() -> None:
    books = Books()
    books.all.prepare()
    books.all.leave()

    assert books.ends == [["prepared"], ["prepared"]]
    assert books.closed() == [True, True], "a connection that is lent again would roll it back"


def test_whose_an_error_is_is_asked_of_every_further_database() -> None:
    books = Books()
    broken, own = psycopg.OperationalError("gone"), psycopg.errors.UniqueViolation("twice")
    assert not books.all.is_away(own)
    books.connections[1].raises = broken
    books.connections[1].closed = True
    with capture_logs() as lines, pytest.raises(psycopg.OperationalError):
        books.databases[1].execute("insert")

    assert [line["resource"] for line in lines] == ["r1"]
    assert (books.all.is_away(broken), books.all.has_said(broken), books.all.has_said(own)) == (True, True, False)
    assert not books.all.is_time_over(broken)
    books.effects[0].fails = lost = Unreachable("the answer to PREPARE was lost")
    with capture_logs() as lines, pytest.raises(Unreachable):
        books.all.prepare()
    assert ([line["resource"] for line in lines], books.all.has_said(lost)) == (["r0"], True)


def test_a_transaction_that_the_server_has_ended_for_its_pause_is_the_handlers_doing_and_stays_so() -> None:
    books = Books()
    books.connections[1].raises = over = psycopg.errors.IdleInTransactionSessionTimeout("idle")
    assert not books.all.is_time_over(over), "as long as it is open, somebody else's was ended"
    books.connections[1].closed = True

    for raised in (over, psycopg.OperationalError("the connection is closed")):
        books.connections[1].raises = raised
        with capture_logs() as lines, pytest.raises(psycopg.Error):
            books.databases[1].execute("insert")
        assert lines == [], "no message waits for it"
        assert not books.all.is_away(raised)
    assert books.all.is_time_over(over)
    with pytest.raises(TimeOver):
        books.all.prepare()
    assert books.ends == [["prepared"], []]


@pytest.mark.parametrize(
    ("severity", "state", "is_its_end"),
    [("FATAL", "25P03", True), ("FATAL", "25P04", True), ("FATAL", "57P01", False), ("WARNING", "25P03", False)],
)
def test_what_the_server_says_before_many_statements_are_sent_at_once_tells_why_they_find_it_gone(
    severity: str, state: str, is_its_end: bool
) -> None:
    """Their own error is that the connection is lost: taken for the network's doing the message would be tried for ever."""
    books = Books()
    lost = psycopg.OperationalError("server closed the connection unexpectedly")
    (hear,) = books.connections[1].hearing
    hear(SimpleNamespace(severity_nonlocalized=severity, sqlstate=state))
    books.connections[1].closed, books.connections[1].raises = True, lost
    with pytest.raises(psycopg.OperationalError):
        books.databases[1].execute("insert")

    assert books.all.is_time_over(lost) is is_its_end
    assert books.all.is_away(lost) is not is_its_end


def test_a_connection_that_is_given_back_tells_its_former_attempt_nothing() -> None:
    books = Books()
    books.all.give_up()

    assert [one.hearing for one in books.connections] == [[], []]


def test_that_messages_wait_is_said_again_when_it_was_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    connections, now = lent(), [1000.0]
    monkeypatch.setattr(further.clock, "monotonic", lambda: now[0])
    with capture_logs() as lines:
        for seconds in (0.0, further.SAID_S - 1, 2.0):
            now[0] += seconds
            connections.say_away(Unreachable("away"))

    assert len(lines) == 2
