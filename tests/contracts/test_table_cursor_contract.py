"""What every table cursor promises, whatever the database: one suite, inherited by PostgreSQL and SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from relay.delivery.table.verdicts import TablePlan
from relay.message.errors import Fenced, MessageRejected, Retriable, Stopped
from relay.transfer.cursor import DEAD, DELIVERED, DUPLICATE, RangeRow, TableCursor
from relay.transfer.timers import ResendTimes
from tests.contracts.table_databases import (
    COLUMNS,
    P0,
    P1,
    TOPIC_ID,
    PostgresqlStore,
    SqliteStore,
    Store,
    message,
    outcomes,
)
from tests.sent_through import sent_through


class TableCursorContract:
    """The suite. Subclasses say which database."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        raise NotImplementedError

    @pytest.fixture
    def cursor(self, store: Store) -> TableCursor:
        cursor = store.cursor()
        cursor.claim({P0: TOPIC_ID, P1: TOPIC_ID})
        return cursor

    def test_a_claim_begins_at_epoch_one_without_a_position(self, store: Store) -> None:
        assert store.cursor().claim({P0: TOPIC_ID}) == {P0: (1, None, ())}

    def test_each_claim_raises_the_epoch_and_reads_the_position(self, store: Store, cursor: TableCursor) -> None:
        cursor.deliver({P0: 7, P1: 0}, cursor.prepare([]))
        assert store.cursor().claim({P0: TOPIC_ID, P1: TOPIC_ID}) == {P0: (2, 7, ()), P1: (2, 0, ())}
        assert store.cursor().claim({P0: TOPIC_ID}) == {P0: (3, 7, ())}

    def test_a_recreated_topic_is_another_partition(self, store: Store, cursor: TableCursor) -> None:
        cursor.deliver({P0: 7}, cursor.prepare([]))
        assert store.cursor().claim({P0: b"\x02" * 16}) == {P0: (1, None, ())}

    def test_ranges_arrive_with_the_position_and_come_back_with_the_claim(
        self, store: Store, cursor: TableCursor
    ) -> None:
        rows = [RangeRow(place, name * 16, name + b" at first") for place in (P0, P1) for name in (b"a", b"b", b"c")]
        cursor.deliver({P0: 1, P1: 1}, cursor.prepare([message(0)], rows))
        cursor.deliver({P0: 2}, cursor.prepare([], [RangeRow(P0, b"a" * 16, b"more"), RangeRow(P0, b"b" * 16, None)]))

        found = store.cursor().claim({P0: TOPIC_ID, P1: TOPIC_ID})
        assert set(found[P0].ranges) == {RangeRow(P0, b"a" * 16, b"more"), rows[2]}
        assert set(found[P1].ranges) == set(rows[3:])
        assert store.cursor().claim({P0: b"\x02" * 16})[P0].ranges == (), "a recreated topic has none"

    def test_a_fenced_owner_writes_no_range(self, store: Store, cursor: TableCursor) -> None:
        store.cursor().claim({P0: TOPIC_ID})
        with pytest.raises(Fenced):
            cursor.deliver({P0: 1}, cursor.prepare([], [RangeRow(P0, b"a" * 16, b"one")]))
        assert store.cursor().claim({P0: TOPIC_ID})[P0].ranges == ()

    def test_ranges_of_a_batch_with_a_bad_row_are_written_once_with_the_rest(
        self, store: Store, cursor: TableCursor
    ) -> None:
        batch = [message(0), message(1, -1)]
        cursor.deliver({P0: 2}, cursor.prepare(batch, [RangeRow(P0, b"a" * 16, b"one")]))
        assert [row.state for row in store.cursor().claim({P0: TOPIC_ID})[P0].ranges] == [b"one"]

    def test_effects_inbox_and_position_arrive_together(self, store: Store, cursor: TableCursor) -> None:
        batch = [message(0), message(1), message(4, partition=1)]
        verdicts = cursor.deliver({P0: 2, P1: 5}, cursor.prepare(batch))
        assert outcomes(verdicts) == [DELIVERED] * 3
        assert store.all("select id, customer, total from ledger order by id") == [
            ("m-0-0", "ann", 0), ("m-0-1", "ann", 1), ("m-1-4", "ann", 4),
        ]
        assert [store.position(0), store.position(1)] == [2, 5]
        rows = [row for page in cursor.inbox([P0, P1]) for row in page]
        assert [(r.partition, r.offset, r.outcome) for r in rows] == [(P0, 0, 0), (P0, 1, 0), (P1, 4, 0)]
        assert [r.applied for r in rows] == [v.applied for v in verdicts]
        assert [(r.digest, r.content) for r in rows] == [(m.digest, m.content) for m in batch]

    def test_later_batches_have_higher_applied_numbers(self, cursor: TableCursor) -> None:
        first = cursor.deliver({P0: 5}, cursor.prepare([message(i) for i in range(5)]))
        second = cursor.deliver({P0: 10}, cursor.prepare([message(i) for i in range(5, 10)]))
        assert max(v.applied for v in first) < min(v.applied for v in second)

    def test_the_position_never_moves_back(self, store: Store, cursor: TableCursor) -> None:
        cursor.deliver({P0: 9}, cursor.prepare([]))
        cursor.deliver({P0: 4}, cursor.prepare([]))
        assert store.position() == 9

    def test_the_same_batch_again_is_answered_as_it_was(self, store: Store, cursor: TableCursor) -> None:
        batch = cursor.prepare([message(i) for i in range(6)])
        first = cursor.deliver({P0: 6}, batch)
        assert cursor.deliver({P0: 6}, batch) == first
        assert len(store.ids()) == 6

    def test_a_batch_that_is_partly_there_delivers_the_rest(self, store: Store, cursor: TableCursor) -> None:
        first = cursor.deliver({P0: 3}, cursor.prepare([message(i) for i in range(3)]))
        again = cursor.deliver({P0: 6}, cursor.prepare([message(i) for i in range(6)]))
        assert again[:3] == first
        assert outcomes(again) == [DELIVERED] * 6
        assert len(store.ids()) == 6

    def test_a_redrive_takes_back_the_inboxs_word_of_a_death_and_of_nothing_else(self, store: Store, cursor: TableCursor) -> None:
        cursor.deliver({P0: 2}, cursor.prepare([message(0), message(1, -1)]))
        again = cursor.deliver({P0: 2}, cursor.prepare([message(0), message(1, 1)], redriven=True))

        assert outcomes(again) == [DELIVERED, DELIVERED]
        assert store.ids() == ["m-0-0", "m-0-1"]
        assert store.all("select outcome, count(*) from relay_inbox group by outcome") == [(DELIVERED, 2)]

    def test_a_producers_repeat_is_a_duplicate(self, store: Store, cursor: TableCursor) -> None:
        cursor.deliver({P0: 1}, cursor.prepare([message(0, 5, name="a")]))
        verdicts = cursor.deliver({P0: 3}, cursor.prepare([message(1, 5, name="a"), message(2, name="b")]))
        assert [(v.outcome, v.conflict) for v in verdicts] == [(DUPLICATE, False), (DELIVERED, False)]
        assert store.all("select id, total from ledger order by id") == [("a", 5), ("b", 2)]

    def test_a_repeat_with_another_content_is_a_conflict_and_the_first_wins(
        self, store: Store, cursor: TableCursor
    ) -> None:
        cursor.deliver({P0: 1}, cursor.prepare([message(0, 5, name="a")]))
        (verdict,) = cursor.deliver({P0: 2}, cursor.prepare([message(1, 6, name="a")]))
        assert (verdict.outcome, verdict.conflict) == (DUPLICATE, True)
        assert store.all("select total from ledger") == [(5,)]

    def test_repeats_within_a_batch(self, store: Store, cursor: TableCursor) -> None:
        batch = [message(0, 1, name="a"), message(1, 1, name="a"), message(2, 2, name="a"), message(3, name="b")]
        verdicts = cursor.deliver({P0: 4}, cursor.prepare(batch))
        assert [(v.outcome, v.conflict) for v in verdicts] == [
            (DELIVERED, False), (DUPLICATE, False), (DUPLICATE, True), (DELIVERED, False),
        ]
        assert store.ids() == ["a", "b"]

    def test_an_older_owner_is_fenced_and_writes_nothing(self, store: Store, cursor: TableCursor) -> None:
        newer = store.cursor()
        newer.claim({P1: TOPIC_ID})
        with pytest.raises(Fenced, match="to-table"):
            cursor.deliver({P0: 1, P1: 1}, cursor.prepare([message(0), message(0, partition=1)]))
        assert store.ids() == []
        assert store.position(0) is None
        assert list(cursor.inbox([P0, P1])) == []
        newer.deliver({P1: 1}, newer.prepare([message(0, partition=1)]))
        assert store.ids() == ["m-1-0"]

    def test_the_same_epoch_in_other_hands_is_fenced(self, store: Store, cursor: TableCursor) -> None:
        """A database restored from its backup counts epochs again; the worker's uuid tells them apart."""
        store.all("update relay_position set worker = 'another'")
        with pytest.raises(Fenced):
            cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        assert store.ids() == []

    def test_an_older_copy_of_the_database_is_fenced(self, store: Store, cursor: TableCursor) -> None:
        """A backup restored under a running worker: epoch, worker and even the position may be as they were."""
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        cursor.deliver({P0: 1}, cursor.prepare([message(7)]))
        store.all("delete from ledger where id = 'm-0-7'")
        store.all("delete from relay_inbox where log_offset = 7")
        store.all("update relay_position set writes = 1 where partition = 0")
        with pytest.raises(Fenced, match="older copy"):
            cursor.deliver({P0: 9}, cursor.prepare([message(8)]))
        assert (store.position(), store.ids()) == (1, ["m-0-0"])
        assert cursor.claim({P0: TOPIC_ID})[P0].position == 1
        cursor.deliver({P0: 9}, cursor.prepare([message(7), message(8)]))
        assert store.ids() == ["m-0-0", "m-0-7", "m-0-8"]

    def test_a_partition_that_was_not_claimed_is_refused(self, store: Store) -> None:
        cursor = store.cursor()
        cursor.claim({P0: TOPIC_ID})
        with pytest.raises(Fenced):
            cursor.deliver({P1: 1}, cursor.prepare([message(0, partition=1)]))

    def test_a_fenced_owner_does_not_trim(self, store: Store, cursor: TableCursor) -> None:
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        store.cursor().claim({P0: TOPIC_ID})
        with pytest.raises(Fenced):
            cursor.trim(P0, 1)
        assert store.all("select count(*) from relay_inbox") == [(1,)]

    def test_trimming_stays_below_offset_and_position(self, store: Store, cursor: TableCursor) -> None:
        cursor.deliver({P0: 4, P1: 1}, cursor.prepare([*map(message, range(6)), message(0, partition=1)]))
        assert cursor.trim(P0, 2) is False
        assert store.all("select partition, log_offset from relay_inbox order by 1, 2") == [
            (0, 2), (0, 3), (0, 4), (0, 5), (1, 0),
        ]
        cursor.trim(P0, 100)
        assert store.all("select partition, log_offset from relay_inbox order by 1, 2") == [(0, 4), (0, 5), (1, 0)]

    def test_a_long_trim_goes_on_with_the_deliveries(
        self, store: Store, cursor: TableCursor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("relay.delivery.table.trims.TRIM_ROWS", 2)
        cursor.deliver({P0: 5}, cursor.prepare([*map(message, range(5))]))
        assert cursor.trim(P0, 5) is True
        assert store.all("select count(*) from relay_inbox") == [(3,)]
        cursor.deliver({P0: 5}, cursor.prepare([]))
        cursor.deliver({P0: 6}, cursor.prepare([message(5)]))
        assert store.all("select log_offset from relay_inbox") == [(5,)]

    def test_the_inbox_is_read_in_pages(
        self, cursor: TableCursor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(f"{type(cursor).__module__}.INBOX_ROWS", 3)
        cursor.deliver({P0: 7}, cursor.prepare([*map(message, range(7))]))
        pages = list(cursor.inbox([P0]))
        assert [len(page) for page in pages] == [3, 3, 1]
        assert [row.offset for page in pages for row in page] == list(range(7))

    def test_a_bad_row_is_a_dead_letter_and_the_others_go_on(self, store: Store, cursor: TableCursor) -> None:
        batch = [message(i, -1 if i in (3, 4, 9) else i) for i in range(10)]
        verdicts = cursor.deliver({P0: 10}, cursor.prepare(batch))
        assert [i for i, v in enumerate(verdicts) if v.outcome == DEAD] == [3, 4, 9]
        assert len(store.ids()) == 7
        assert store.position() == 10
        assert store.all("select log_offset from relay_inbox where outcome = 1 order by 1") == [(3,), (4,), (9,)]
        cause = verdicts[3].cause
        assert cause is not None
        assert cause.stage == "apply"

    def test_a_bad_row_said_again_is_the_same_dead_letter(self, cursor: TableCursor) -> None:
        batch = cursor.prepare([message(0), message(1, -1)])
        first = cursor.deliver({P0: 2}, batch)
        again = cursor.deliver({P0: 2}, batch)
        assert outcomes(again) == outcomes(first) == [DELIVERED, DEAD]
        assert [v.applied for v in again] == [v.applied for v in first]
        assert all(v.cause is not None for v in again if v.outcome == DEAD)

    def test_a_cause_holds_no_value_of_the_message(self, store: Store, cursor: TableCursor) -> None:
        batch = [
            message(0, "canary-1"), message(1, -77777), message(2, {"canary-2": 1}), message(3, 3.5e300), message(4, None),
        ]
        for verdict in cursor.deliver({P0: 5}, cursor.prepare(batch)):
            if verdict.cause is not None:
                assert "canary" not in str(verdict.cause)
                assert "77777" not in str(verdict.cause)
                assert "3.5" not in str(verdict.cause)

    def test_a_taken_key_of_the_table_is_a_dead_letter(self, store: Store, cursor: TableCursor) -> None:
        store.all("insert into ledger values ('m-0-1', 'someone', 1)")
        verdicts = cursor.deliver({P0: 3}, cursor.prepare([*map(message, range(3))]))
        assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
        assert store.all("select customer from ledger where id = 'm-0-1'") == [("someone",)]

    def test_what_cannot_be_mapped_is_a_dead_letter_of_its_own(self, store: Store, cursor: TableCursor) -> None:
        batch = [message(0), message(1, value=b"{not json"), message(2)]
        verdicts = cursor.deliver({P0: 3}, cursor.prepare(batch))
        assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
        assert verdicts[1].cause is not None
        assert (verdicts[1].cause.stage, verdicts[1].cause.code) == ("decode", "not_json")
        assert store.ids() == ["m-0-0", "m-0-2"]

    def test_a_message_with_a_fault_from_reading_is_a_dead_letter(self, store: Store, cursor: TableCursor) -> None:
        fault = MessageRejected("decode", "too_many_headers", "it has too many headers")
        (verdict,) = cursor.deliver({P0: 1}, cursor.prepare([message(0, fault=fault)]))
        assert (verdict.outcome, verdict.cause) == (DEAD, fault)
        assert store.ids() == []

    def test_both_kinds_of_faults_in_one_batch(self, store: Store, cursor: TableCursor) -> None:
        batch = [message(0, value=b"x"), message(1, -1), message(2), message(3, value=b"["), message(4, -1)]
        verdicts = cursor.deliver({P0: 5}, cursor.prepare(batch))
        assert outcomes(verdicts) == [DEAD, DEAD, DELIVERED, DEAD, DEAD]
        assert [v.cause.stage for v in verdicts if v.cause] == ["decode", "apply", "decode", "apply"]
        assert store.ids() == ["m-0-2"]

    def test_a_batch_of_bad_rows_only(self, store: Store, cursor: TableCursor) -> None:
        verdicts = cursor.deliver({P0: 9}, cursor.prepare([message(i, -1) for i in range(9)]))
        assert outcomes(verdicts) == [DEAD] * 9
        assert store.position() == 9

    def test_a_batch_of_bad_rows_that_takes_longer_than_its_timer_gets_through(
        self, store: Store, cursor: TableCursor
    ) -> None:
        batch = cursor.prepare([message(i, -1) for i in range(1000)])
        verdicts = sent_through(cursor, ResendTimes(0.5, 0.5, lambda: 0.5), {P0: 1000}, batch)
        assert outcomes(verdicts) == [DEAD] * 1000

    def test_upsert_keeps_the_last_row_of_each_key(self, store: Store) -> None:
        cursor = store.cursor(mode="upsert", key=("id",), columns={**COLUMNS, "id": "json:/customer"})
        cursor.claim({P0: TOPIC_ID})
        values = [("ann", 1), ("bob", 2), ("ann", 3), ("cid", 4), ("bob", 5)]
        batch = [
            message(i, value=orjson.dumps({"customer": name, "total": total}))
            for i, (name, total) in enumerate(values)
        ]
        assert outcomes(cursor.deliver({P0: 3}, cursor.prepare(batch[:3]))) == [DELIVERED] * 3
        assert outcomes(cursor.deliver({P0: 5}, cursor.prepare(batch[3:]))) == [DELIVERED] * 2
        assert store.all("select id, total from ledger order by id") == [("ann", 3), ("bob", 5), ("cid", 4)]

    def test_own_sql_runs_once_for_each_message(self, store: Store) -> None:
        store.all("insert into ledger values ('sum', 'all', 0)")
        cursor = store.cursor(
            mode="sql", table="", sql="update ledger set total = total + %(total)s, customer = '100%%' where id = 'sum'"
        )
        cursor.claim({P0: TOPIC_ID})
        batch = cursor.prepare([message(i, 10) for i in range(4)])
        cursor.deliver({P0: 4}, batch)
        cursor.deliver({P0: 4}, batch)
        assert store.all("select total, customer from ledger") == [(40, "100%")]

    def test_a_refused_row_of_own_sql_is_a_dead_letter(self, store: Store) -> None:
        store.all("insert into ledger values ('sum', 'all', 5)")
        cursor = store.cursor(mode="sql", table="", sql="update ledger set total = total + %(total)s where id = 'sum'")
        cursor.claim({P0: TOPIC_ID})
        verdicts = cursor.deliver({P0: 3}, cursor.prepare([message(0, 1), message(1, -50), message(2, 2)]))
        assert outcomes(verdicts) == [DELIVERED, DEAD, DELIVERED]
        assert store.all("select total from ledger") == [(8,)]

    def test_a_missing_table_stops_the_route(self, store: Store) -> None:
        with pytest.raises(Stopped, match="nowhere"):
            store.cursor(table="nowhere").claim({P0: TOPIC_ID})

    def test_a_missing_column_stops_the_route(self, store: Store) -> None:
        with pytest.raises(Stopped, match="colour"):
            store.cursor(columns={**COLUMNS, "colour": "json:/colour"}).claim({P0: TOPIC_ID})

    def test_a_table_that_vanishes_stops_the_route_and_kills_no_message(
        self, store: Store, cursor: TableCursor
    ) -> None:
        batch = cursor.prepare([message(0)])
        store.all("alter table ledger rename to gone")
        with pytest.raises(Stopped, match="ledger"):
            cursor.deliver({P0: 1}, batch)
        assert store.all("select count(*) from relay_inbox") == [(0,)]
        store.all("alter table gone rename to ledger")
        assert outcomes(cursor.deliver({P0: 1}, batch)) == [DELIVERED]

    def test_two_routes_do_not_see_each_other(self, store: Store, cursor: TableCursor) -> None:
        other = type(cursor)(
            store.url,
            TablePlan("shop", "second", "shop", "copied", "insert", COLUMNS),
        )
        store.all("create table copied (id text, customer text, total bigint)")
        other.claim({P0: TOPIC_ID})
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        assert outcomes(other.deliver({P0: 1}, other.prepare([message(0)]))) == [DELIVERED]
        cursor.trim(P0, 1)
        assert [len(page) for page in other.inbox([P0])] == [1]
        other.close()

    def test_odd_values_arrive_as_they_are(self, store: Store) -> None:
        store.all("create table odd (a text, b text, c text, d double precision, e integer)")
        cursor = store.cursor(table="odd", columns={k: f"json:/{k}" for k in "abcde"})
        cursor.claim({P0: TOPIC_ID})
        rows = [
            {"a": "tab\tline\nback\\slash\rcr", "b": "\\N", "c": "", "d": 1.5, "e": -3},
            {"a": "héllo 😀", "b": None, "c": "\\.", "d": 1e300, "e": None},
            {"a": "'; drop table odd; --", "b": "{a,b}", "c": '"', "d": 0.1, "e": 0},
        ]
        batch = [message(i, value=orjson.dumps(row)) for i, row in enumerate(rows)]
        assert outcomes(cursor.deliver({P0: 3}, cursor.prepare(batch))) == [DELIVERED] * 3
        found = store.all("select a, b, c, d, e from odd")
        assert sorted(found) == sorted(tuple(row.values()) for row in rows)

    def test_bytes_json_and_places(self, store: Store) -> None:
        blob = "bytea" if isinstance(store, PostgresqlStore) else "blob"
        store.all(f"create table places (key {blob}, value text, topic text, part integer, place bigint, head text)")
        columns = {
            "key": "kafka:key", "value": "json:", "topic": "kafka:topic", "part": "kafka:partition",
            "place": "kafka:offset", "head": "header:trace",
        }
        cursor = store.cursor(table="places", columns=columns)
        cursor.claim({P0: TOPIC_ID})
        record = message(3)._replace(key=b"\x00\xff", value=b'{"a": [1]}', headers=[("trace", b"t-1")])
        assert outcomes(cursor.deliver({P0: 4}, cursor.prepare([record]))) == [DELIVERED]
        assert store.all("select * from places") == [(b"\x00\xff", '{"a":[1]}', "orders", 0, 3, "t-1")]


class DatabaseCursorContract(TableCursorContract):
    """What depends on a real database's keys and types."""

    def test_upsert_loses_no_row_whose_key_is_null(self, store: Store) -> None:
        store.all("create table keyed (id text, customer text unique)")
        columns = {"id": "ce:id", "customer": "json:/customer"}
        cursor = store.cursor(table="keyed", mode="upsert", key=("customer",), columns=columns)
        cursor.claim({P0: TOPIC_ID})
        values = [b"{}", b'{"customer": "c"}', b"{}", b'{"customer": "c"}']
        batch = [message(i, value=value) for i, value in enumerate(values)]
        assert outcomes(cursor.deliver({P0: 4}, cursor.prepare(batch))) == [DELIVERED] * 4
        found = store.all("select id from keyed where customer is null order by id")
        assert found == [("m-0-0",), ("m-0-2",)]

    def test_numbers_longer_than_a_double_keep_their_digits(self, store: Store) -> None:
        store.all("create table long (n text, exact numeric)")
        cursor = store.cursor(table="long", columns={"n": "json:/n", "exact": "json:/n"})
        cursor.claim({P0: TOPIC_ID})
        numbers = ["12345678901234567.89", "123456789012345678901234567890", "-0.12345678901234567891", "0.1", "1e300"]
        batch = [message(i, value=b'{"n": %s}' % number.encode()) for i, number in enumerate(numbers)]
        assert outcomes(cursor.deliver({P0: 5}, cursor.prepare(batch))) == [DELIVERED] * 5
        found = [row[0] for row in store.all("select n from long")]
        assert found[:3] == numbers[:3]
        assert [float(n) for n in found[3:]] == [0.1, 1e300]
        if isinstance(store, PostgresqlStore):
            assert [str(row[0]) for row in store.all("select exact from long limit 3")] == numbers[:3]


class TestPostgresqlCursor(DatabaseCursorContract):
    @pytest.fixture
    def store(self, postgres: str) -> Iterator[Store]:
        store = PostgresqlStore(postgres)
        yield store
        for cursor in store.cursors:
            cursor.close()
        store.connection.close()


class TestSqliteCursor(DatabaseCursorContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SqliteStore(tmp_path / "shop.db")
        yield store
        for cursor in store.cursors:
            cursor.close()
        store.connection.close()

    def test_a_file_that_was_replaced_by_its_copy_is_written_to(self, store: Store, tmp_path: Path) -> None:
        cursor = store.cursor()
        cursor.claim({P0: TOPIC_ID})
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
        # Or the old file's log would be taken for the copy's.
        store.all("pragma wal_checkpoint(truncate)")
        store.all(f"vacuum into '{copy}'")
        copy.replace(path)

        assert outcomes(cursor.deliver({P0: 2}, cursor.prepare([message(1)]))) == [DELIVERED]

        with sqlite3.connect(path) as there:
            assert there.execute("select count(*) from ledger").fetchall() == [(2,)]

    def test_a_batch_that_takes_longer_than_its_timer_gets_through(self, store: Store) -> None:
        counting = "(with recursive c (n) as (select 1 union all select n + 1 from c where n < 200000) select max(n) from c)"
        store.all("insert into ledger values ('sum', 'all', 0)")
        cursor = store.cursor(
            mode="sql", table="", sql=f"update ledger set total = {counting} + %(total)s where id = 'sum'"
        )
        cursor.claim({P0: TOPIC_ID})
        batch = cursor.prepare([message(i, 1) for i in range(30)])
        verdicts = sent_through(cursor, ResendTimes(0.3, 0.3, lambda: 0.5), {P0: 30}, batch)
        assert outcomes(verdicts) == [DELIVERED] * 30

    def test_a_busy_file_is_retriable(self, store: Store) -> None:
        cursor = store.cursor()
        cursor.claim({P0: TOPIC_ID})
        batch = cursor.prepare([message(0)])
        store.all("begin immediate")
        with pytest.raises(Retriable):
            cursor.deliver({P0: 1}, batch)
        store.all("rollback")
        assert outcomes(cursor.deliver({P0: 1}, batch)) == [DELIVERED]
