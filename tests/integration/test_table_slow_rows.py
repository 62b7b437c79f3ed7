"""PostgreSQL: a row that takes too long, or asks to be tried again, at every try; and a database that does so for all."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest

from relay.delivery.table.postgresql.cursor import PostgresqlCursor
from relay.delivery.table.verdicts import Limits
from relay.message.errors import Fenced, InDoubt, Retriable, Stopped
from relay.resources import patience
from relay.transfer.cursor import DEAD, DELIVERED, Verdict
from relay.transfer.timers import ResendTimes
from tests.contracts.table_databases import P0, TOPIC_ID, message, outcomes
from tests.integration.table_site import WAIT_S, Database
from tests.sent_through import sent_through

LIMITS = Limits(lock_timeout_s=0.1, statement_timeout_s=0.25, idle_in_transaction_s=5)
SLOW = "perform pg_sleep(9)"
TRIES = 8
"""More than it takes, and few."""
BAD = 7
OWN = "insert into ledger values (%(id)s, %(customer)s, %(total)s)"


def trouble(database: Database, body: str, when: str = "before insert on ledger") -> None:
    kind = "constraint trigger" if "deferrable" in when else "trigger"
    database.do(
        f"create or replace function trouble() returns trigger language plpgsql as $$begin {body}; return new; end$$;"
        f"create {kind} trouble {when} for each row execute function trouble()"
    )


def claimed(database: Database, limits: Limits = LIMITS, **over: Any) -> PostgresqlCursor:
    cursor = database.cursor(limits=limits, **over)
    cursor.claim({P0: TOPIC_ID})
    return cursor


def tried(cursor: PostgresqlCursor, prepared: Any, tries: int = TRIES) -> list[Verdict] | None:
    """Deliver as the thread that sends does: again and again while it is to be tried again."""
    for _ in range(tries):
        try:
            return cursor.deliver({P0: 100}, prepared)
        except (Retriable, InDoubt):
            pass
    return None


AT_EVERY_TRY = {
    "57014": SLOW,
    "40001": "raise serialization_failure",
    "40P01": "raise exception 'canary' using errcode = '40P01'",
}
WHEN = {
    "before": "before insert on ledger",
    "behind": "after insert on ledger",
    "at COMMIT": "after insert on ledger deferrable initially deferred",
}


# What is deferred until COMMIT no timeout of a statement ends.
@pytest.mark.parametrize(
    ("state", "when"), [(state, when) for state in AT_EVERY_TRY for when in WHEN if (state, when) != ("57014", "at COMMIT")]
)
@pytest.mark.parametrize("mode", ["insert", "upsert", "sql"])
def test_a_row_that_asks_to_be_tried_again_at_every_try_is_a_dead_letter(
    database: Database, state: str, when: str, mode: str
) -> None:
    trouble(database, f"if new.total = {BAD} then {AT_EVERY_TRY[state]}; end if", WHEN[when])
    over = {"sql": OWN} if mode == "sql" else {"key": ("id",) if mode == "upsert" else ()}
    cursor = claimed(database, mode=mode, **over)

    verdicts = tried(cursor, cursor.prepare([*map(message, range(40))]))

    assert verdicts is not None, f"still asked to be tried again after {TRIES} times"
    assert outcomes(verdicts) == [DEAD if i == BAD else DELIVERED for i in range(40)]
    cause = verdicts[BAD].cause
    assert cause is not None
    assert cause.code == state
    assert "canary" not in str(cause)
    assert database.one("select count(*) from ledger") == 39


def test_so_are_several_beside_one_that_is_bad_in_another_way(database: Database) -> None:
    trouble(database, f"if new.total in (0, 11, 12, 39) then {SLOW}; end if")
    cursor = claimed(database)
    batch = [message(i, -1 if i == 20 else i) for i in range(40)]
    verdicts = tried(cursor, cursor.prepare(batch))
    assert verdicts is not None
    assert [i for i, verdict in enumerate(verdicts) if verdict.outcome == DEAD] == [0, 11, 12, 20, 39]


@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("state", ["57014", "40001"])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_where_every_row_does_so_none_dies_however_often_it_is_tried(
    database: Database, count: int, state: str, when: str
) -> None:
    cursor = claimed(database)
    cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
    trouble(database, AT_EVERY_TRY[state], WHEN[when])
    batch = [message(i) for i in range(1, 1 + count)]
    prepared = cursor.prepare(batch)
    for _ in range(2 * TRIES):
        try:
            cursor.deliver({P0: 100}, prepared)
        except Retriable:
            continue
        except Fenced:
            cursor.claim({P0: TOPIC_ID})
            prepared = cursor.prepare(batch)
            continue
        pytest.fail("it was delivered, or died")
    assert database.one("select count(*) from relay_inbox") == 1
    database.do("drop trigger trouble on ledger")
    assert outcomes(cursor.deliver({P0: 100}, prepared)) == [DELIVERED] * count


def test_nor_does_one_where_most_rows_do_so(database: Database) -> None:
    trouble(database, f"if new.total > 3 then {AT_EVERY_TRY['40001']}; end if")
    cursor = claimed(database)
    assert tried(cursor, cursor.prepare([*map(message, range(12))]), 2 * TRIES) is None
    assert database.one("select count(*) from relay_inbox") == 0


def test_a_row_that_goes_through_at_a_later_try_is_delivered(database: Database) -> None:
    """At each try another row is slow, as on a server that is slow now and then."""
    database.do("create sequence turns")
    trouble(database, "if new.total = 0 then perform nextval('turns'); end if;"
        f"if new.total = (select last_value from turns) then {SLOW}; end if")
    cursor = claimed(database)
    verdicts = tried(cursor, cursor.prepare([*map(message, range(20))]), 40)
    assert verdicts is not None
    assert outcomes(verdicts) == [DELIVERED] * 20


def test_a_row_that_is_alone_in_its_batch_waits_for_others_to_tell(database: Database) -> None:
    trouble(database, f"if new.total = {BAD} then {SLOW}; end if")
    cursor = claimed(database)
    cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
    with pytest.raises(Fenced, match="read anew"):
        tried(cursor, cursor.prepare([message(BAD)]))
    assert database.one("select count(*) from relay_inbox") == 1

    cursor.claim({P0: TOPIC_ID})
    verdicts = tried(cursor, cursor.prepare([message(BAD), message(BAD + 1)]))
    assert verdicts is not None
    assert outcomes(verdicts) == [DEAD, DELIVERED]


def test_a_row_that_somebody_else_locks_for_long_is_not_at_fault(database: Database) -> None:
    """Where a lock may be waited for longer than a statement may take, this looks like a slow row."""
    cursor = claimed(database, Limits(5, 0.25, 5), mode="upsert", key=("id",))
    cursor.deliver({P0: 1}, cursor.prepare([message(0), message(1)]))
    with psycopg.connect(database.url) as other:
        other.execute("select * from ledger where id = 'm-0-1' for update")
        again = [message(10, 5, name="m-0-1"), message(11)]
        again[0] = again[0]._replace(digest=b"another-in-key-1")
        prepared = cursor.prepare(again)
        assert tried(cursor, prepared, 2 * TRIES) is None
    assert outcomes(cursor.deliver({P0: 12}, prepared)) == [DELIVERED, DELIVERED]


def test_a_route_that_wants_no_dead_letters_stops_there(database: Database) -> None:
    trouble(database, f"if new.total = {BAD} then {SLOW}; end if")
    cursor = claimed(database, stop_on_dead=True)
    with pytest.raises(Stopped, match="on_dead"):
        tried(cursor, cursor.prepare([*map(message, range(10))]))
    assert database.one("select count(*) from relay_inbox") == 0


def test_a_dead_message_that_is_redriven_and_still_too_slow_holds_nothing_up(database: Database) -> None:
    trouble(database, f"if new.total = {BAD} then {SLOW}; end if")
    cursor = claimed(database)
    assert tried(cursor, cursor.prepare([message(BAD), message(BAD + 1)])) is not None
    verdicts = tried(cursor, cursor.prepare([message(BAD)], redriven=True))
    assert verdicts is not None
    assert outcomes(verdicts) == [DEAD]


def test_the_thread_that_sends_gets_through_while_its_timer_runs(database: Database) -> None:
    trouble(database, f"if new.total = {BAD} then {SLOW}; end if")
    cursor = claimed(database)
    batch = cursor.prepare([*map(message, range(300))])
    verdicts = sent_through(cursor, ResendTimes(0.1, 1.0, lambda: 0.0), {P0: 300}, batch)
    assert [i for i, verdict in enumerate(verdicts) if verdict.outcome == DEAD] == [BAD]


def test_no_row_dies_of_deadlocks_with_an_application(database: Database) -> None:
    """It locks the same rows the other way round, again and again, and it is always the route that the server ends."""
    database.do("insert into ledger values ('m-0-0', 'shop', 1), ('m-0-1', 'shop', 1)")
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name like 'relay:%'"
    route = f"{database.url}?options=-cdeadlock_timeout%3D200ms"
    cursor = database.cursor(route, Limits(lock_timeout_s=5, statement_timeout_s=8), mode="upsert", key=("id",))
    cursor.claim({P0: TOPIC_ID})
    trouble(database, "perform pg_sleep(0.05)")  # of a row that goes through, so that the application has the other one again
    holds = threading.Event()

    def deadlock() -> None:
        with psycopg.connect(f"{database.url}?options=-cdeadlock_timeout%3D60s") as application:
            for _ in range(2 * TRIES):
                application.execute("update ledger set customer = 'application' where id = 'm-0-1'")
                holds.set()
                database.until(waits)
                holds.clear()
                application.execute("update ledger set customer = 'application' where id = 'm-0-0'")
                application.commit()
        holds.set()

    application = threading.Thread(target=deadlock)
    application.start()
    prepared, verdicts = cursor.prepare([message(0), message(1)]), None
    while verdicts is None and holds.wait(WAIT_S):
        verdicts = tried(cursor, prepared, tries=1)
    application.join(WAIT_S)
    assert verdicts is not None
    assert outcomes(verdicts) == [DELIVERED, DELIVERED]
    assert database.one("select array_agg(customer) from ledger") == ["ann", "ann"]


def test_a_claim_whose_commit_has_no_end_is_given_up(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a synchronous standby is away: no limit of the server's ends that."""
    monkeypatch.setattr(patience, "ANSWER_TIMEOUT_S", 1.0)
    trouble(database, "perform pg_sleep(15)", "after insert on relay_position deferrable initially deferred")
    cursor = database.cursor(limits=LIMITS)
    began = time.monotonic()
    with pytest.raises(Retriable, match="synchronous standby"):
        cursor.claim({P0: TOPIC_ID})
    assert time.monotonic() - began < WAIT_S / 2
    with pytest.raises(Retriable):  # the row that the first one has not let go
        cursor.claim({P0: TOPIC_ID})
    database.do("select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'")
    database.do("drop trigger trouble on relay_position")
    assert cursor.claim({P0: TOPIC_ID})[P0].epoch == 1
