"""A service whose blocks are those of an event loop: a file's database, and what takes the messages in place of a log."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from relay.capture import publisher
from relay.capture.async_block import AsyncCaptureBlock
from relay.capture.capture import Capture
from relay.kafka.appender import Receipt, Record
from relay.kafka.settings import DefaultTiming
from relay.kafka.topics import TopicFacts
from relay.resources import open_resource
from relay.world import clock

MARKER_KEY_BYTES = 16
WAIT_S = 60.0
INSERT = "insert into orders values (?)"


class Log:
    """What takes the messages; it waits where a test says so."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.reached = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def append(self, records: Sequence[Record], receipt: Receipt, _: float) -> None:
        self.reached.set()
        assert self.may_go_on.wait(WAIT_S)
        self.keys += [record.key for record in records if len(record.key or b"") != MARKER_KEY_BYTES]
        for _record in records:
            receipt.told(None, None)


class Pause:
    """A step that waits until it may go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, *_: object) -> None:
        self.reached.set()
        assert self.may_go_on.wait(WAIT_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def make(path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Capture]]:
    monkeypatch.setattr(publisher, "CLOSE_S", 0.1)  # what a coroutine left behind is not waited for
    with ExitStack() as made:
        yield lambda **options: made.enter_context(opened(path, log, **options))


@pytest.fixture
def capture(make: Callable[..., Capture]) -> Capture:
    return make()


@pytest.fixture
def begun(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> Pause:
    """Return what each block waits for once its transaction has begun."""
    pause, begin = Pause(), capture._publisher.begin

    def slow() -> Any:
        transaction = begin()
        pause()
        return transaction

    monkeypatch.setattr(capture._publisher, "begin", slow)
    return pause


def opened(path: Path, log: Log, **options: Any) -> Capture:
    """Return a capture into a new database."""
    resource = open_resource("shop", f"sqlite:///{path}", 1.0)
    resource.create_tables()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table if not exists orders (id integer primary key)")
    timing = DefaultTiming(append_timeout=WAIT_S)
    capture = Capture(
        kafka={"bootstrap.servers": "127.0.0.1:1"}, resource=resource, source="/s", timing=timing, **options
    )
    capture._publisher._appender.topic = lambda name, _wait_s: TopicFacts(name, b"", 1, 1)  # type: ignore[method-assign]
    capture._publisher._appender.append = log.append  # type: ignore[method-assign]
    return capture


def orders(path: Path) -> list[int]:
    """Return what is committed."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("select id from orders order by id")]


def writable(path: Path) -> None:
    """Fail if a transaction of somebody else holds the file."""
    with closing(sqlite3.connect(path, timeout=1.0)) as connection:
        connection.execute("begin immediate")
        connection.rollback()


async def place(capture: Capture, number: int) -> AsyncCaptureBlock:
    """Place an order and announce it."""
    async with capture.async_transaction() as tx:
        await tx.execute(INSERT, (number,))
        await tx.publish("orders", number, key=str(number))
    return tx


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, WAIT_S)


def at_rest(found: Callable[[], int]) -> None:
    """Wait until so many threads, or blocks, are none."""
    limit = clock.monotonic() + WAIT_S
    while found():
        assert clock.monotonic() < limit, f"{found()} are left"
        clock.sleep(0.005)
