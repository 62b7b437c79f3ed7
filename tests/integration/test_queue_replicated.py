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
from relay.resources.postgresql import PostgresqlResource
from tests.contracts.table_databases import P0, TOPIC_ID
from tests.contracts.table_databases import message as in_log
from tests.integration.table_site import Database

QUEUE = QueueSettings("work", Audience((Group("all", ("all",)),)))


SEQUENCES = (
    "'relay_queue_handle'",
    *(f"pg_get_serial_sequence('{table}', 'id')" for table in ("relay_queue", "relay_queue_subscriber", "relay_queue_group")),
    "pg_get_serial_sequence('relay_inbox', 'applied')",
)


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


def test_a_migration_raises_all_that_a_copy_has_without_its_sequences(database: Database) -> None:
    many = QueueSettings("work", Audience(tuple(Group(name, (name,)) for name in "abcd")))
    more = QueueSettings("work", Audience(tuple(Group(name, (name,)) for name in "abcde")))
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    for n in range(3):
        cursor.deliver({P0: n + 1}, cursor.prepare([in_log(n)]))
    create(database.connection)
    queue = open_store(many, database.url)
    queue.put([message("old")], 1)
    queue.close()
    for sequence in SEQUENCES:
        database.do(f"select setval({sequence}, 1, false)")

    PostgresqlResource("shop", database.url, 1.0).create_tables()
    create(database.connection)

    queue = open_store(more, database.url)
    assert queue.put([message("new")], 1)[0].handle == 2
    queue.close()
    cursor.deliver({P0: 4}, cursor.prepare([in_log(3)]))
    assert database.one("select array_agg(applied order by log_offset) from relay_inbox") == [1, 2, 3, 4]


def test_others_who_put_at_once_do_not_look_like_that(database: Database, postgres: str) -> None:
    create(database.connection)
    queue = open_store(QUEUE, database.url)
    queue.put([message("first")], 1)
    with psycopg.connect(postgres) as open_transaction:
        open_transaction.execute("select nextval('relay_queue_handle')")
        open_store(QUEUE, database.url).close()
    queue.close()
    open_store(QUEUE, database.url).close()
