"""How many connections a Capture keeps: what a burst of threads needed is given back when the burst is over, and who closes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relay.capture.capture import Capture
from relay.capture.publisher import IDLE_KEPT_S, Publisher
from relay.message.envelope import ResourceName
from relay.message.errors import Unreachable
from relay.world import clock, schedule


class Session:
    """A connection that says whether it is open."""

    uuid = "u"
    usable = True

    def __init__(self) -> None:
        self.is_open = True

    def begin(self) -> tuple[bytes, bytes]:
        return bytes(16), bytes(16)

    def close(self) -> None:
        self.is_open = False


class Database:
    """A resource whose connections are counted, and whose decisions are away."""

    name = "shop"

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def identity(self) -> ResourceName:
        return ResourceName("shop", "u")

    def session(self) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    def decisions(self) -> Any:
        raise Unreachable("away")

    @property
    def open(self) -> int:
        return sum(session.is_open for session in self.sessions)


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def capture(database: Any) -> Iterator[Capture]:
    with Capture(kafka={"bootstrap.servers": "127.0.0.1:1"}, resource=database, source="/s") as made:
        yield made


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many seconds pass."""
    passed = [0.0]
    real = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: real() + passed[0])

    def advance(seconds: float) -> None:
        passed[0] += seconds

    return advance


def burst(capture: Capture, count: int) -> None:
    for session in [capture._publisher.begin()[0] for _ in range(count)]:
        capture._publisher.give_back(session)


def test_connections_of_a_burst_are_kept_for_the_next_and_closed_when_none_comes(
    database: Database, capture: Capture, later: Callable[[float], None]
) -> None:
    burst(capture, 50)
    burst(capture, 50)
    assert (database.open, len(database.sessions)) == (50, 50)

    for _ in range(4):
        later(IDLE_KEPT_S / 3)
        burst(capture, 2)

    assert (database.open, len(database.sessions)) == (2, 50)


def test_they_are_closed_without_a_further_capture_too(
    database: Database, capture: Capture, later: Callable[[float], None]
) -> None:
    burst(capture, 50)

    later(IDLE_KEPT_S + 1)
    deadline = 200
    while database.open and deadline:
        deadline -= 1
        schedule.event().wait(0.05)

    assert database.open == 0


def test_a_connection_that_comes_back_while_the_capture_is_closed_is_closed(database: Database, capture: Capture) -> None:
    session, *_ = capture._publisher.begin()
    capture.close()
    capture._publisher.give_back(session)

    assert database.open == 0


def test_of_two_threads_that_close_at_once_one_does(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one got the error of a client that was closed already."""
    both, failed, ended = threading.Barrier(2), list[Exception](), list[str]()
    end = capture._publisher._appender.close

    def arrived(_: Capture) -> bool:
        both.wait(30)
        return True

    def close_client() -> None:
        ended.append("client")
        end()

    monkeypatch.setattr(Publisher, "is_here", property(arrived))
    monkeypatch.setattr(capture._publisher._appender, "close", close_client)

    def close() -> None:
        try:
            capture.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the test's to tell
            failed.append(error)

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert (failed, ended) == ([], ["client"])
