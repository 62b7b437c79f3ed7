"""Blocks of an event loop on a real broker and database: what shows is what committed, however their coroutines are cancelled."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from capture_log import shown, until

from relay import AsyncCaptureBlock, Capture
from relay.message.errors import CaptureError
from relay.resources import open_resource
from relay.resources.port import Resource, RowLocked

BLOCKS = 300


@pytest.fixture(params=["postgresql", "sqlite"])
def resource(request: pytest.FixtureRequest, tmp_path: Path) -> Resource:
    is_server = request.param == "postgresql"
    url = request.getfixturevalue("postgres") if is_server else f"sqlite:///{tmp_path}/s.db"
    found = open_resource("shop", url)
    found.create_tables()
    session = found.session()
    session.execute("create table orders (id integer primary key)")
    session.execute("create table stock (id integer primary key, sold integer not null)")
    session.execute("insert into stock values (1, 0)")
    session.close()
    return found


@pytest.fixture
def topic(make_topic) -> str:
    return make_topic(partitions=2)


@pytest.fixture
def capture(kafka: str, resource: Resource) -> Iterator[Capture]:
    with Capture(
        kafka={"bootstrap.servers": kafka}, resource=resource, source="/checkout", async_blocks=6
    ) as opened:
        yield opened


def read(resource: Resource, query: str) -> list[int]:
    session = resource.session()
    found = [row[0] for row in session.execute(query).fetchall()]
    session.close()
    return found


def test_what_shows_is_what_committed_however_blocks_are_cancelled(
    capture: Capture, resource: Resource, kafka: str, topic: str
) -> None:
    """All of them want the row of one stock: with a thread for each step, those that wait would keep it from who has the row."""
    placeholder = "%s" if "postgresql" in type(resource).__module__ else "?"
    insert = f"insert into orders values ({placeholder})"
    chance = random.Random(1)
    told: dict[int, bool] = {}

    async def place(number: int, tx: AsyncCaptureBlock) -> None:
        async with tx:
            await tx.execute(insert, (number,))
            await tx.publish(topic, number, key=str(number))
            await tx.execute("update stock set sold = sold + 1")
            if number % 7 == 0:
                raise ValueError("no stock")

    async def one(number: int, limit_s: float | None) -> None:
        tx = capture.async_transaction()
        try:
            async with asyncio.timeout(limit_s):
                await place(number, tx)
        except (TimeoutError, ValueError, CaptureError, RowLocked):
            pass
        told[number] = tx.is_committed

    async def serve() -> None:
        await asyncio.gather(*(one(number, None if number == 1 else 2 * chance.random() ** 2) for number in range(BLOCKS)))

    asyncio.run(serve())

    said = sorted(number for number, is_committed in told.items() if is_committed)
    until(lambda: len(shown(kafka, topic)) >= len(said), "the markers")
    assert 0 < len(said) < BLOCKS * 6 / 7
    assert read(resource, "select id from orders order by id") == said
    assert read(resource, "select sold from stock") == [len(said)]
    assert sorted(json.loads(found.value or b"") for found in shown(kafka, topic)) == said
    assert capture.in_doubt == 0
