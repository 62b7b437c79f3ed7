"""A PostgreSQL whose inbox is slow: what takes longer than one statement may is done in parts, and holds nothing up."""

from __future__ import annotations

from contextlib import suppress

from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.verdicts import Limits
from relay.message.errors import Retriable
from relay.transfer.cursor import DELIVERED, DUPLICATE
from tests.contracts.table_databases import P0, TOPIC_ID, message, outcomes
from tests.integration.table_site import Database

TIMEOUT_S = 0.25
ROWS = 150
"""At four milliseconds each, more than twice what one statement has time for."""


def slow(database: Database, what: str) -> None:
    """Have the inbox take four milliseconds for each row that is written or deleted."""
    database.do(f"""
        create function slowly() returns trigger language plpgsql as
            $$ begin perform pg_sleep(0.004); return {'old' if what == 'delete' else 'new'}; end $$;
        create trigger slow before {what} on relay_inbox for each row execute function slowly()
    """)


def claimed(database: Database) -> PostgresqlCursor:
    cursor = database.cursor(limits=Limits(statement_timeout_s=TIMEOUT_S))
    cursor.claim({P0: TOPIC_ID})
    return cursor


def test_rows_that_take_long_to_delete_hold_up_no_batch_and_go_little_by_little(database: Database) -> None:
    cursor = claimed(database)
    cursor.deliver({P0: ROWS}, cursor.prepare([*map(message, range(ROWS))]))
    slow(database, "delete")

    with suppress(Retriable):
        cursor.trim(P0, ROWS)
    for offset in range(ROWS, ROWS + 40):
        assert outcomes(cursor.deliver({P0: offset + 1}, cursor.prepare([message(offset)]))) == [DELIVERED]

    assert database.one("select count(*) from relay_inbox") == 40
    assert database.one("select count(*) from ledger") == ROWS + 40


def test_inbox_rows_that_take_long_to_write_are_written_in_parts_of_one_transaction(database: Database) -> None:
    slow(database, "insert")
    cursor = claimed(database)
    progress: list[None] = []
    cursor.progressed = lambda: progress.append(None)

    first = cursor.deliver({P0: ROWS}, cursor.prepare([*map(message, range(ROWS))]))

    assert outcomes(first) == [DELIVERED] * ROWS
    assert database.one("select count(distinct xmin::text) from relay_inbox") == 1
    assert progress, "each part that is answered starts the timer again"


def test_so_are_those_of_a_batch_with_repeats(database: Database) -> None:
    cursor = claimed(database)
    cursor.deliver({P0: 10}, cursor.prepare([*map(message, range(10))]))
    slow(database, "insert")

    again = cursor.deliver({P0: ROWS}, cursor.prepare([message(0, name="m-0-0"), *map(message, range(10, ROWS))]))
    repeat = cursor.deliver({P0: ROWS + 1}, cursor.prepare([message(ROWS, name="m-0-20")]))

    assert outcomes(again) == [DELIVERED] * (ROWS - 9)
    assert outcomes(repeat) == [DUPLICATE]
    assert database.one("select count(*) from relay_inbox") == ROWS
