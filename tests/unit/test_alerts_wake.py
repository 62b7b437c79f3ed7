"""Whom an alert wakes, and when whoever waits for one goes on without."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from relay.queue import alerts
from relay.queue.alerts import LOOK_AGAIN_S, POLL_S, Board, PolledAlerts, PostgresqlAlerts, SqliteAlerts
from relay.resources import patience

LONG_S = 30.0


class Clock:
    """A clock that goes on only where somebody sleeps, or waits for an event that nobody sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        monkeypatch.setattr(alerts, "clock", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_everybody_who_waits_for_a_queue_is_woken_and_nobody_else() -> None:
    board = Board()
    first, second, other = board.listen("q"), board.listen("q"), board.listen("r")

    board.tell("q")

    assert [event.is_set() for event in (first, second, other)] == [True, True, False]


def test_who_has_left_is_woken_no_more_and_nothing_is_kept_of_a_queue_that_all_have_left() -> None:
    board = Board()
    first, second = board.listen("q"), board.listen("q")

    board.leave("q", first)
    board.tell("q")
    board.leave("q", second)

    assert (first.is_set(), second.is_set()) == (False, True)
    assert not board._events
    board.tell("q")


@pytest.mark.parametrize(("asked", "slept"), [(LONG_S, POLL_S), (POLL_S / 4, POLL_S / 4)])
def test_where_nothing_is_told_nobody_waits_for_longer_than_asked_nor_than_the_polls_interval(asked: float, slept: float, time: Clock) -> None:
    assert PolledAlerts().wait("ann", asked)
    assert time.slept == [slept]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "q.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table message (handle integer)")
    connection.close()
    return path


@pytest.fixture
def waiting(file: Path, time: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteAlerts]:
    board = Board()
    monkeypatch.setattr(alerts, "BOARD", board)
    found = SqliteAlerts("q", file)
    event = found._event

    def wait(seconds: float) -> bool:
        if not event.is_set():
            time.sleep(seconds)
        return event.is_set()

    found._event = SimpleNamespace(wait=wait, clear=event.clear)  # type: ignore[assignment]
    yield found
    found._event = event
    found.close()
    assert not board._events


def test_a_file_is_looked_at_often_and_no_longer_than_asked(waiting: SqliteAlerts, time: Clock) -> None:
    assert not waiting.wait("ann", 2.5 * LOOK_AGAIN_S)
    assert time.slept == pytest.approx([LOOK_AGAIN_S, LOOK_AGAIN_S, LOOK_AGAIN_S / 2, 0.0])


def test_what_another_process_commits_wakes_at_the_next_look_and_once(waiting: SqliteAlerts, file: Path, time: Clock) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("insert into message values (1)")
    connection.close()

    assert waiting.wait("ann", LONG_S)
    assert time.slept == [LOOK_AGAIN_S]
    assert not waiting.wait("ann", LOOK_AGAIN_S)


def test_a_file_that_cannot_be_looked_at_wakes_for_a_take_that_says_why(waiting: SqliteAlerts, file: Path, time: Clock) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("begin exclusive")

        assert waiting.wait("ann", LONG_S)
        assert not waiting.wait("ann", LOOK_AGAIN_S), "once"

    assert waiting.wait("ann", LONG_S), "what was committed meanwhile was not heard"
    assert not waiting.wait("ann", LOOK_AGAIN_S)


def test_what_this_process_puts_wakes_at_once_and_once(waiting: SqliteAlerts, time: Clock) -> None:
    alerts.BOARD.tell("q")

    assert waiting.wait("ann", LONG_S)
    assert time.slept == []
    assert not waiting.wait("ann", LOOK_AGAIN_S)


class Listening:
    """A connection of psycopg's; ``told`` are the payloads that it gives, each for one wait."""

    def __init__(self, *told: str) -> None:
        self.told = list(told)
        self.closed = False
        self.asked: list[object] = []

    def fileno(self) -> int:
        return 0

    def execute(self, statement: object) -> None:
        self.asked.append(statement)

    def notifies(self, *, timeout: float, stop_after: int) -> Iterator[SimpleNamespace]:
        assert (timeout > 0, stop_after) == (True, 1)
        if self.told:
            yield SimpleNamespace(payload=self.told.pop(0))
        else:
            alerts.clock.sleep(timeout)

    def close(self) -> None:
        self.closed = True


class Watched:
    """Whether an answer is looked after while it is due, and its connection let go of then."""

    def __init__(self, made: Listening) -> None:
        self.made = made
        self.steps: list[object] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        before = len(self.made.asked)
        yield
        self.steps.append(self.made.asked[before:])

    def close(self) -> None:
        self.steps.append("closed")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, time: Clock) -> list[tuple[Listening, Watched]]:
    found: list[tuple[Listening, Watched]] = []

    def connect(*_: object, **__: Any) -> Listening:
        made = Listening()
        found.append((made, Watched(made)))
        return made

    monkeypatch.setattr(psycopg, "connect", connect)
    monkeypatch.setattr(patience, "await_on", lambda _: found[-1][1])
    return found


def test_a_server_that_does_not_answer_to_who_would_listen_is_given_up(server: list[tuple[Listening, Watched]]) -> None:
    PostgresqlAlerts("q", "")

    ((_, watched),) = server
    assert watched.steps == [[b"listen relay_queue"], "closed"]


def test_another_queues_word_wakes_nobody_and_the_own_one_does(server: list[tuple[Listening, Watched]], time: Clock) -> None:
    waiting = PostgresqlAlerts("q", "")
    ((made, _),) = server
    made.told = ["r", "q", "r"]

    assert waiting.wait("ann", LONG_S)
    assert (made.told, time.slept) == (["r"], [])
    assert not waiting.wait("ann", LONG_S)
    assert time.slept == [LONG_S]
    waiting.close()
    assert made.closed


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_connection_that_has_gone_is_made_again_by_the_next_wait(is_lost: bool, server: list[tuple[Listening, Watched]], time: Clock) -> None:
    """What came while nobody listened was not heard, so the wait for the new one ends at once."""
    waiting = PostgresqlAlerts("q", "")
    made = server[0][0]

    def lost(**_: object) -> Iterator[SimpleNamespace]:
        raise psycopg.OperationalError("the connection is lost")

    if is_lost:
        made.notifies = lost  # type: ignore[method-assign]
    else:
        made.close()

    if is_lost:
        assert waiting.wait("ann", LONG_S)
        assert (made.closed, time.slept) == (True, [POLL_S])
    assert waiting.wait("ann", LONG_S)
    assert (len(server), time.slept) == (2, [POLL_S] * is_lost)
    assert not waiting.wait("ann", 1.0)
    assert time.slept[-1] == 1.0


def test_who_finds_no_server_waits_for_no_longer_than_asked(monkeypatch: pytest.MonkeyPatch, time: Clock) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise psycopg.OperationalError("no server")

    monkeypatch.setattr(psycopg, "connect", refuse)
    waiting = PostgresqlAlerts("q", "")

    for asked in (LONG_S, POLL_S / 4):
        assert waiting.wait("ann", asked)
    assert time.slept == [POLL_S, POLL_S / 4]
