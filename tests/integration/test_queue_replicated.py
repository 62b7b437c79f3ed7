"""Queues in a PostgreSQL that is replicated logically: published as a whole, or such a copy, which has no sequences."""

from __future__ import annotations

import psycopg
import pytest

from relay.message.errors import ConfigError
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.queue.stores.postgresql import TALLY_ROWS_MAX
from relay.queue.stores.sql_schema import create
from tests.integration.table_site import Database

QUEUE = QueueSettings("work", Audience((Group("all", ("all",)),)))


def message(name: str) -> NewMessage:
    return NewMessage("shop", name, b"value")


def test_all_tables_may_be_published(database: Database) -> None:
    create(database.connection)
    database.do("create publication everything for all tables")
    queue = open_store(QUEUE, database.url)
    for n in range(TALLY_ROWS_MAX + 2):
        queue.put([message(f"m{n}")], 1)
    assert queue.waiting() == TALLY_ROWS_MAX + 2
    queue.close()
    assert database.one("select count(*) < 10 from relay_queue_tally")


def test_tables_of_before_are_mended_by_a_migration(database: Database) -> None:
    create(database.connection)
    database.do("alter table relay_queue_tally replica identity default")
    for _ in range(2):
        create(database.connection)
        assert database.one("select relreplident = 'f' from pg_class where relname = 'relay_queue_tally'")


@pytest.mark.parametrize("at", ["1, false", "1, true", "4, true"])
def test_a_sequence_that_was_left_behind_is_refused_until_a_migration_raises_it(database: Database, at: str) -> None:
    create(database.connection)
    queue = open_store(QUEUE, database.url)
    handles = [answer.handle for answer in queue.put([message(f"old-{n}") for n in range(5)], 1)]
    queue.close()
    database.do(f"select setval('relay_queue_handle', {at})")
    with pytest.raises(ConfigError, match="run `relay migrate`"):
        open_store(QUEUE, database.url)
    create(database.connection)
    queue = open_store(QUEUE, database.url)
    assert queue.put([message("new")], 1)[0].handle > max(handles)
    queue.close()


def test_others_who_put_at_once_do_not_look_like_that(database: Database, postgres: str) -> None:
    create(database.connection)
    queue = open_store(QUEUE, database.url)
    queue.put([message("first")], 1)
    with psycopg.connect(postgres) as open_transaction:
        open_transaction.execute("select nextval('relay_queue_handle')")
        open_store(QUEUE, database.url).close()
    queue.close()
    open_store(QUEUE, database.url).close()
