"""A Capture for tests of applications: what a committed block published is there at once, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from relay.capture.testing import CaptureInMemory, Published
from relay.message.errors import CaptureError, ConfigError

INSERT = "insert into orders values (?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("create table orders (id integer primary key)")
    return tmp_path / "shop.db"


@pytest.fixture
def capture(path: Path) -> Iterator[CaptureInMemory]:
    with CaptureInMemory(f"sqlite:///{path}") as made:
        yield made


def test_what_a_committed_block_published_is_there_when_it_is_left(capture: CaptureInMemory, path: Path) -> None:
    with capture.transaction() as tx:
        tx.execute(INSERT, (42,))
        first = tx.publish("orders", {"id": 42}, key="42", type="order.placed", headers={"tenant": "a"})
        tx.publish("bills", b"raw")
        assert capture.published == []

    one, other = capture.published
    assert (one.topic, one.partition, one.key, one.id, one.type, one.data) == ("orders", 0, b"42", first, "order.placed", {"id": 42})
    assert (one.headers["tenant"], one.headers["ce_source"], one.headers["ce_sequence"]) == (b"a", b"/test", b"1")
    assert (other.topic, other.data, other.value) == ("bills", b"raw", b"raw")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select id from orders").fetchall() == [(42,)]


def test_of_what_was_rolled_back_nothing_is(capture: CaptureInMemory) -> None:
    with suppress(ValueError), capture.transaction() as tx:
        tx.publish("orders", 1)
        raise ValueError
    with capture.transaction() as tx:
        tx.publish("orders", 2)
        with suppress(ValueError), tx.savepoint():
            tx.publish("orders", 3)
            raise ValueError
        tx.publish("orders", None)

    assert [one.data for one in capture.published] == [2, None]


def test_a_block_that_fails_as_it_commits_has_published_nothing(capture: CaptureInMemory, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table lines (id integer references orders deferrable initially deferred)")
    with pytest.raises(CaptureError, match="COMMIT was refused"), capture.transaction() as tx:  # noqa: PT012
        tx.execute("insert into lines values (1)")
        tx.publish("orders", 1)

    assert capture.published == []


def test_a_topic_has_as_many_partitions_as_are_given_and_no_other_exists(path: Path) -> None:
    with CaptureInMemory(f"sqlite:///{path}", topics={"orders": 3}, source="/checkout") as capture:
        with capture.transaction() as tx:
            tx.publish("orders", 1, partition=2)
        for wrong in (lambda tx: tx.publish("orders", 1, partition=3), lambda tx: tx.publish("bills", 1)):
            with pytest.raises((CaptureError, ConfigError)), capture.transaction() as tx:
                wrong(tx)

    assert [(one.partition, one.headers["ce_source"]) for one in capture.published] == [(2, b"/checkout")]


def test_blocks_of_an_event_loop_publish_as_well(capture: CaptureInMemory) -> None:
    async def place(number: int) -> None:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (number,))
            await tx.publish("orders", number)

    async def serve() -> None:
        await asyncio.gather(*(place(number) for number in range(5)))

    asyncio.run(serve())

    assert sorted(one.data for one in capture.published) == [0, 1, 2, 3, 4]
    assert all(isinstance(one, Published) for one in capture.published)


def test_another_test_on_the_same_database_begins_with_nothing(capture: CaptureInMemory, path: Path) -> None:
    with capture.transaction() as tx:
        tx.publish("orders", 1)
    capture.close()

    with CaptureInMemory(f"sqlite:///{path}") as again, again.transaction() as tx:
        tx.publish("orders", 2)

    assert [one.data for one in again.published] == [2]
    assert again.backlog == again.in_doubt == 0
