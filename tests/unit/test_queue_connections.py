"""A server that falls silent is noticed in seconds, by whatever connection of a queue: its worker must go on beating."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import psycopg
import pytest

from relay.queue import alerts
from relay.queue.alerts import PostgresqlAlerts
from relay.queue.port import StoreAway
from relay.queue.stores.postgresql import PostgresqlSession
from relay.queue.stores.sqlite import SqliteSession
from relay.resources.postgresql import PostgresqlResource
from relay.world import clock

URL = "postgresql://relay@db.example:5433/queues?keepalives_count=9"


class Made:
    """What was asked of psycopg; ``fails`` is the number of the statement that a connection refuses."""

    def __init__(self, fails: int = -1) -> None:
        self.asked: list[dict[str, Any]] = []
        self.said: list[object] = []
        self.closed = False
        self.info = SimpleNamespace(backend_pid=7)
        self._left = fails
        self._socket = socket.socket()

    def fileno(self) -> int:
        return self._socket.fileno()

    def connect(self, url: str = "", **asked: Any) -> Made:
        given = psycopg.conninfo.conninfo_to_dict(url) if url else {}
        self.asked.append({**asked, **given})
        return self

    def execute(self, statement: object, *_: object, **__: object) -> Made:
        if statement != "select pg_backend_pid()":
            self.said.append(statement)
            self._left -= 1
            if self._left == -1:
                raise psycopg.errors.QueryCanceled("canceled")
        return self

    def fetchone(self) -> tuple[int]:
        return (self.info.backend_pid,)  # no pooler is between

    def close(self) -> None:
        self.closed = True
        self._socket.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    found = Made()
    monkeypatch.setattr(psycopg, "connect", found.connect)
    yield found
    found.close()


@pytest.mark.parametrize(
    "connect",
    [
        lambda: PostgresqlResource("shop", URL, 1.0).connect(),
        lambda: PostgresqlSession(URL)._connected(),
        lambda: PostgresqlAlerts("q", URL),
    ],
    ids=["resource", "queue", "alerts"],
)
def test_a_silent_server_is_noticed_in_seconds_and_the_addresss_own_words_hold(
    connect: Callable[[], object], made: Made
) -> None:
    connect()

    (asked,) = made.asked
    assert asked["connect_timeout"] == 5
    assert asked["tcp_user_timeout"] == 10_000
    assert (asked["keepalives_idle"], asked["keepalives_interval"], asked["keepalives_count"]) == (5, 2, "9")
    assert (asked["host"], asked["port"], asked["dbname"], asked["user"]) == ("db.example", "5433", "queues", "relay")


@pytest.mark.parametrize("connect", [lambda: PostgresqlResource("shop", URL, 1.0).connect(), lambda: PostgresqlSession(URL)._connected()])
def test_commits_are_on_the_servers_disk_before_they_are_answered(connect: Callable[[], object], made: Made) -> None:
    """Outcomes of attempts among them: what is freed because of one must not outlive it."""
    connect()

    assert b"set_config('synchronous_commit', 'on'" in cast("bytes", made.said[0])


def test_a_file_whose_folder_cannot_be_made_is_away(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"")

    with pytest.raises(StoreAway, match=r"state/queues cannot be made \(Not a directory\)"):
        SqliteSession(tmp_path / "state" / "queues" / "queue.db")


def test_commits_to_a_file_are_on_its_disk_before_they_are_answered(tmp_path: Path) -> None:
    """In WAL mode ``NORMAL`` would sync at checkpoints only."""
    session = SqliteSession(tmp_path / "queue.db")
    full = 2
    assert session.run("pragma synchronous", {}) == [(full,)]
    session.close()


@pytest.mark.parametrize("fails", [0, 1])
def test_a_connection_whose_settings_were_not_taken_is_not_used(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them a commit might be answered before it is on the server's disk."""
    half = Made(fails)
    monkeypatch.setattr(psycopg, "connect", half.connect)
    session = PostgresqlSession(URL)
    with pytest.raises(StoreAway):
        session._connected()
    assert half.closed

    def refuse(*_: object, **__: object) -> NoReturn:
        raise psycopg.OperationalError("no server")

    monkeypatch.setattr(psycopg, "connect", refuse)
    with pytest.raises(StoreAway):
        session._connected()


@pytest.mark.parametrize("refusal", [psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.QueryCanceled, psycopg.errors.InsufficientPrivilege])
def test_who_may_not_listen_asks_at_the_polls_pace_and_ends_for_nothing_that_a_server_says(
    refusal: type[psycopg.Error], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby lets nobody listen: a worker whose queue is paused meets that first, and takes nothing from it yet."""
    slept: list[float] = []
    monkeypatch.setattr(alerts, "clock", SimpleNamespace(monotonic=clock.monotonic, sleep=slept.append))
    refusing: list[Made] = []

    def connect(*given: Any, **asked: Any) -> Made:
        class Standby(Made):
            def execute(self, statement: object, *_: object, **__: object) -> Made:
                raise refusal("cannot execute LISTEN during recovery")

        refusing.append(Standby())
        return refusing[-1]

    monkeypatch.setattr(psycopg, "connect", connect)
    waiting = PostgresqlAlerts("q", URL)

    assert waiting.wait("ann", 30.0)
    assert slept == [alerts.POLL_S]
    assert [one.closed for one in refusing] == [True, True]
    waiting.close()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: path.write_bytes(b"no database, whatever its name is" * 40), "it is no SQLite database; correct the path, or restore it"),
        (lambda path: path.mkdir(), "let the relay read and write it and the folder that it lies in"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_with_what_helps(tmp_path: Path, made: Callable[[Path], object], said: str) -> None:
    made(tmp_path / "credit.db")

    with pytest.raises(StoreAway, match="cannot be used") as raised:
        SqliteSession(tmp_path / "credit.db")

    assert said in str(raised.value)


def test_what_may_not_be_written_is_said_with_what_helps(tmp_path: Path) -> None:
    session = SqliteSession(tmp_path / "credit.db")
    session._connection.execute("pragma query_only = on")

    with pytest.raises(StoreAway, match=r"READONLY.*: let the relay write it and the folder that it lies in"), session.unit():
        session._connection.execute("create table other (n)")

    session.close()
