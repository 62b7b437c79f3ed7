"""Defaults of a database or role that change how values are read: what is stored is what was given, all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relay.audit.tables import open_store as open_audited
from relay.config.model import ResourceConfig
from relay.queue.message import Audience, Group, NewMessage
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.queue.stores.postgresql import bind_postgresql
from relay.queue.stores.sql_schema import create
from relay.resources.postgresql import PostgresqlResource
from tests.contracts.table_databases import P0, TOPIC_ID, message, outcomes
from tests.integration.table_site import Database

QUEUE = QueueSettings("work", Audience((Group("all", ("all",)),)))
BYTES = b"a\\b'\0\xff"
Set = Callable[[str], None]


@pytest.fixture
def default(database: Database) -> Set:
    """Set a default for all later connections to the database."""
    name = database.one("select current_database()")
    return lambda setting: database.do(f"alter database {name} set {setting}")


def test_a_queue_keeps_values_whatever_a_backslash_means(database: Database, default: Set) -> None:
    create(database.connection)
    default("standard_conforming_strings = off")
    queue = open_store(QUEUE, database.url)
    queue.put([NewMessage("p", "i\\'", BYTES, key=BYTES)], 1)
    queue.close()
    assert database.connection.execute("select id, key, value from relay_queue_message").fetchall() == [("i\\'", BYTES, BYTES)]


def test_a_queue_in_a_handlers_transaction_does_so_too(database: Database, default: Set) -> None:
    create(database.connection)
    default("standard_conforming_strings = off")
    queue = bind_postgresql(QUEUE, PostgresqlResource("shop", database.url, 1.0).connect())
    queue.put([NewMessage("p", "i", BYTES)], 1)
    queue.close()
    assert database.one("select value from relay_queue_message") == BYTES


def test_decisions_are_read_as_they_are_committed_whatever_the_isolation_by_default(database: Database, default: Set) -> None:
    """Who has lost the race for a row must read the one that stands, in the next statement."""
    default("default_transaction_isolation = serializable")
    decisions = PostgresqlResource("shop", database.url, 1.0).decisions()
    shown = decisions._connection.execute("show transaction_isolation").fetchone()
    decisions.close()
    assert shown == ("read committed",)


def test_decisions_are_found_whatever_a_backslash_means(database: Database, default: Set) -> None:
    default("standard_conforming_strings = off")
    resource = PostgresqlResource("shop", database.url, 1.0)
    session = resource.session()
    capture, nonce = session.begin()
    session.decide(capture, b'[["orders",0]]')
    session.close()
    decisions = resource.decisions()
    assert [row.nonce for row in decisions.read([capture]).values()] == [nonce]
    looked_at = open_audited("shop", ResourceConfig(url=database.url))
    assert list(looked_at.captures([capture])) == [capture]
    looked_at.close()
    decisions.mark([capture])
    assert decisions.unmarked(-1.0, 10) == []
    decisions.close()


@pytest.mark.parametrize("mode", ["insert", "upsert"])
@pytest.mark.parametrize("setting", ["standard_conforming_strings = off", "array_nulls = off", "bytea_output = 'escape'"])
def test_a_table_route_writes_what_was_given(database: Database, default: Set, setting: str, mode: str) -> None:
    default(setting)
    columns = {"id": "ce:id", "customer": "json:/customer", "total": "json:/total"}
    cursor = database.cursor(mode=mode, key=("id",) if mode == "upsert" else (), columns=columns)
    cursor.claim({P0: TOPIC_ID})
    batch = [message(0, name="a\\b'c", value=b'{"customer": null, "total": 1}'), message(1, name="NULL")]
    for _ in ("new", "repeated"):
        assert outcomes(cursor.deliver({P0: 2}, cursor.prepare(batch))) == [0, 0]
    rows = database.connection.execute("select id, customer from ledger order by id").fetchall()
    assert rows == [("NULL", "ann"), ("a\\b'c", None)]


def test_a_batch_may_take_longer_than_a_transaction_by_default(database: Database, default: Set) -> None:
    """Tried again it would take as long again, for ever."""
    if not database.one("select count(*) from pg_settings where name = 'transaction_timeout'"):
        pytest.skip("this PostgreSQL has no such limit")
    database.do(
        "create function slow() returns trigger language plpgsql as $$begin perform pg_sleep(0.02); return new; end$$;"
        "create trigger slow before insert on ledger for each row execute function slow()"
    )
    default("transaction_timeout = '300ms'")
    cursor = database.cursor()
    cursor.claim({P0: TOPIC_ID})
    assert outcomes(cursor.deliver({P0: 40}, cursor.prepare([message(i) for i in range(40)]))) == [0] * 40


def test_resolvers_queues_and_audits_have_no_such_limit_either(database: Database, default: Set) -> None:
    if not database.one("select count(*) from pg_settings where name = 'transaction_timeout'"):
        pytest.skip("this PostgreSQL has no such limit")
    create(database.connection)
    default("transaction_timeout = '300ms'")
    asked = "select current_setting('transaction_timeout')"
    decisions = PostgresqlResource("shop", database.url, 1.0).decisions()
    assert decisions._connection.execute(asked).fetchone() == ("0",)
    queue = open_store(QUEUE, database.url)
    assert queue.session.run(asked, {}) == [("0",)]
    looked_at = open_audited("shop", ResourceConfig(url=database.url))
    assert looked_at._connection.execute(asked).fetchone() == ("0",)
    for one in (decisions, queue, looked_at):
        one.close()
