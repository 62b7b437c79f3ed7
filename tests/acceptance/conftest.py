"""Queues of document 003's tests, on each medium."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from relay.queue.message import Audience, Group
from relay.queue.port import QueueStore
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.queue.stores.sql_schema import create
from tests.acceptance.queue_in_use import MEDIA, Open, Queue


@pytest.fixture(scope="module")
def queue_database(services: Any) -> Iterator[str]:
    """URL of one database for all tests of this module: each makes a schema of its own in it."""
    name = f"t_{secrets.token_hex(6)}"
    with psycopg.connect(services.postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield services.postgres.rpartition("/")[0] + f"/{name}"
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def on(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return ``on(medium, *groups)``: a name is a subscriber, a tuple a pool called after its members."""
    opened: list[QueueStore] = []

    def open_on(medium: str, *groups: str | tuple[str, ...], name: str = "iq", in_order: bool = False, **over: Any) -> Queue:
        members = [(one,) if isinstance(one, str) else one for one in groups or ("clerk",)]
        audience = Audience(tuple(Group("+".join(each), each) for each in members), in_order)
        url = address(medium)
        opened.append(open_store(QueueSettings(name, audience, **over), url, state=tmp_path))
        return Queue(opened[-1], url)

    def address(medium: str) -> str:
        if medium != "postgresql":
            return f"{medium}:///{tmp_path}/{medium}-queues"
        schema = f"s{secrets.token_hex(6)}"
        url: str = request.getfixturevalue("queue_database")
        with psycopg.connect(url) as connection:
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        url += f"?options=-csearch_path%3D{schema}"
        with psycopg.connect(url) as connection:
            create(connection)
        return url

    yield open_on
    for store in opened:
        store.close()


@pytest.fixture(params=MEDIA)
def queue(on: Open, request: pytest.FixtureRequest) -> Queue:
    """Publisher X's queue for Subscribers 0, 1 and 2, on each medium."""
    return on(request.param, "0", "1", "2")
