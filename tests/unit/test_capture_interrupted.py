"""A capture that is interrupted at any of its instructions: what it held is free, and the next one goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from relay.capture import publisher
from relay.capture.block import CaptureBlock
from relay.capture.capture import Capture
from relay.kafka.appender import Receipt, Record
from relay.kafka.settings import DefaultTiming
from relay.kafka.topics import TopicFacts
from relay.message.errors import CaptureError
from relay.resources import open_resource, sqlite
from relay.resources.port import RowLocked
from tests.unit.interrupting import Interrupting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def capture(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Capture]:
    monkeypatch.setattr(publisher, "CLOSE_S", 0.1)  # markers that an interrupt took along are the next start's business
    monkeypatch.setattr(sqlite, "WRITER_TIMEOUT_S", 1.0)  # the marking has the file, too, now and then
    resource = open_resource("shop", f"sqlite:///{path}", 1.0)
    resource.create_tables()
    with sqlite3.connect(path) as connection:
        connection.execute("create table orders (id integer primary key)")
    timing = DefaultTiming(append_timeout=0.5)
    made = Capture(kafka={"bootstrap.servers": "127.0.0.1:1"}, resource=resource, source="/s", timing=timing)
    monkeypatch.setattr(made._publisher._appender, "topic", lambda name, _wait_s: TopicFacts(name, b"", 1, 1))
    monkeypatch.setattr(made._publisher._appender, "append", take)
    with made:
        yield made


def take(records: Sequence[Record], receipt: Receipt, _: float) -> None:
    for _record in records:
        receipt.told(None, None)


def commits(tx: CaptureBlock) -> None:
    tx.publish("orders", 1)


def publishes_nothing(tx: CaptureBlock) -> None:
    pass


def fails(tx: CaptureBlock) -> None:
    raise ValueError("the application's own")


def undoes_a_part(tx: CaptureBlock) -> None:
    with suppress(ValueError), tx.savepoint():
        tx.publish("orders", 1)
        raise ValueError("the application's own")
    tx.publish("orders", 2)


def goes_on_after_a_failure(tx: CaptureBlock) -> None:
    with suppress(sqlite3.Error):
        tx.execute("insert into nowhere values (1)")
    raise ValueError("the application's own")


@pytest.mark.parametrize("rest", [commits, publishes_nothing, fails, undoes_a_part, goes_on_after_a_failure])
def test_wherever_a_capture_is_interrupted_the_next_one_goes_on(
    capture: Capture, rest: Callable[[CaptureBlock], None]
) -> None:
    numbers = iter(range(1_000_000))
    kept: list[CaptureBlock] = []

    def block() -> None:
        with suppress(ValueError), capture.transaction() as tx:
            kept[:] = [tx]
            tx.execute("insert into orders values (?)", (next(numbers),))
            rest(tx)

    held_up = []
    at = 0
    while not held_up:
        at += 1
        interrupting = Interrupting(at)
        if not interrupting.run(block):
            break
        try:
            block()
        except (RowLocked, CaptureError) as error:
            held_up.append(f"{interrupting.where}: {error}")

    assert held_up == []
    assert at > 60, "that the interrupts were where captures are made"
