"""Which statements a block does not run, since its messages would not follow what they do."""

from __future__ import annotations

import time

import pytest
from psycopg import sql

from relay.capture.statements import check_statement
from relay.message.errors import CaptureError


@pytest.mark.parametrize(
    "query",
    [
        "commit", "COMMIT", "  end;", "rollback to savepoint item", "Savepoint item", "release item", "abort", "begin immediate",
        "start transaction read only", "commit and chain", "prepare transaction 'x'", ";commit", "/* a */ -- b\n /* c\n */commit",
        "prepare/**/transaction 'x'", b"rollback", sql.SQL("savepoint {}").format(sql.Identifier("item")),
    ],
)  # fmt: skip
def test_one_that_controls_transactions_is_refused(query: object) -> None:
    with pytest.raises(CaptureError, match=r"in tx\.execute: the block begins its transaction.*tx\.savepoint"):
        check_statement(query)


@pytest.mark.parametrize(
    "query",
    [
        "insert into orders values (1)", "prepare p as select 1", "select 'commit'", "with a as (select 1) select * from a",
        "commits", "endless", "-- commit\nselect 1", "/* commit */ select 1", "-- nothing", "", "(select 1)", b"select 1",
        sql.SQL("insert into {} values (%s)").format(sql.Identifier("commit")), "values (1)", '"commit"',
    ],
)  # fmt: skip
def test_any_other_is_not(query: object) -> None:
    check_statement(query)


def test_what_only_the_connection_can_compose_is_left_to_the_driver() -> None:
    class Money:
        """A type that an application registers with the connection."""

    check_statement(sql.SQL("insert into orders values ({})").format(sql.Literal(Money())))


def test_a_long_beginning_is_looked_through_in_time_that_grows_with_its_length() -> None:
    began = time.thread_time()
    for long in (" " * 1_000_000 + "(", "-- x\n" * 200_000 + "(", "/**/ " * 200_000, "/*" * 500_000, ";" * 1_000_000):
        check_statement(long)
    assert time.thread_time() - began < 10
