"""A handler that sets `search_path` in its transaction, as applications with a schema for each tenant do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from relay.queue.port import QueueStore
from relay.queue.states import PublisherState
from relay.queue.stores import bind_store, open_store
from relay.resources import open_resource
from relay.work.desk_postgresql import PostgresqlDesk
from relay.work.desks import Database, Desks
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler
from relay.world import schedule
from tests.integration.handler_site import SETTINGS, Table

AUDIT = replace(SETTINGS, name="audit")
SAID = pytest.mark.parametrize(
    "said", ["set local search_path = tenant", "set search_path = tenant", "set local search_path = ''"]
)


class Shop:
    """One connection to a database with a tenant's schema; the queues lie in it, or in the same database unknown to it."""

    def __init__(self, url: str) -> None:
        self.table = Table(url)
        self.table.run("create schema tenant; create table tenant.entry (number integer)")
        open_resource("shop", url).create_tables()
        self.audit = open_store(AUDIT, url)
        self._connection = psycopg.connect(url, autocommit=True)

    def end(self, said: str, *, is_near: bool) -> Ended:
        """Handle a message: an entry for the tenant, and a child."""

        def bind(connection: Any) -> dict[str, QueueStore]:
            return {
                one.name: bind_store(one, self.table.url, connection) for one in (SETTINGS, AUDIT) if is_near
            }

        def handle(message: Message, db: Database) -> None:
            db.execute(said)
            db.execute("insert into tenant.entry values (1)")
            message.publish("audit", b"child")

        desks = Desks(lambda: PostgresqlDesk("shop", self._connection, bind), 1)
        stores = {"q": self.table.store, "audit": self.audit}
        place = Place(
            "q",
            "s",
            "queue:q" if is_near else "resource:shop",
            stores,
            {name: schedule.lock() for name in stores},
        )
        (ended,) = Runner(Handler("q", handle, "shop", 0, "queue"), place, desks)(Work((self.table.taken,)))
        return ended

    def close(self) -> None:
        self._connection.close()
        self.audit.close()
        self.table.close()


@pytest.fixture
def shop(postgres: str) -> Iterator[Shop]:
    made = Shop(postgres)
    yield made
    made.close()


@SAID
@pytest.mark.parametrize("is_near", [True, False])
def test_the_relay_finds_its_own_tables_all_the_same(shop: Shop, said: str, is_near: bool) -> None:
    ended = shop.end(said, is_near=is_near)

    assert ended.outcome is (Outcome.WRITTEN if is_near else Outcome.DONE)
    assert shop.table.run("select count(*) from tenant.entry") == [(1,)]
    assert shop.audit.counts()[0][PublisherState.REVEALED] == 1


def test_tables_of_the_same_name_in_the_tenants_schema_are_none_of_the_relays(shop: Shop) -> None:
    names = [
        "relay_queue_delivery",
        "relay_queue_open",
        "relay_queue_message",
        "relay_queue",
        "relay_attempt",
    ]
    shop.table.run(";".join(f"create table tenant.{name} (like public.{name})" for name in names))

    assert shop.end("set local search_path = tenant, public", is_near=True).outcome is Outcome.WRITTEN


def test_they_are_found_in_any_schema_that_the_connection_begins_with(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute('create schema "The relay"')
        connection.execute(f'alter database {connection.info.dbname} set search_path = "The relay"'.encode())
    shop = Shop(postgres)

    assert shop.end("set local search_path = tenant", is_near=True).outcome is Outcome.WRITTEN
    shop.close()
