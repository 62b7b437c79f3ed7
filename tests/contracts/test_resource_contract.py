"""The cases of every resource manager on PostgreSQL and SQLite, and what only one of them does."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from psycopg import sql
from psycopg.pq.abc import PGresult

from relay.config.model import ResourceConfig
from relay.message.errors import Unreachable
from relay.resources import open_resource, patience, postgresql_session
from relay.resources.port import (
    CommitRefused,
    Decisions,
    NotTheTransactionBegun,
    Resource,
    Session,
)
from relay.resources.postgresql import PostgresqlResource, own_cursor
from relay.resources.postgresql_session import PostgresqlSession
from relay.setup.check_table import judge_own_tables
from relay.setup.check_topics import Findings
from tests.contracts.resource_contract import LOCK_TIMEOUT_S, PLACED, ResourceContract


class Migrated(ResourceContract):
    """What `relay migrate` does for a real database."""

    def outside(self, session: Any, statement: Any) -> Any:
        connection = session._connection
        own = sqlite3.Cursor(connection) if isinstance(connection, sqlite3.Connection) else own_cursor(connection)
        return own.execute(statement)

    def test_tables_of_an_earlier_version_are_found_and_grown_by_a_migration(self, url: str, resource: Resource) -> None:
        config = ResourceConfig.model_validate({"url": url})
        session = resource.session()
        session.execute("insert into relay_position values ('shop', 'r', 'id', 'orders', 0, 7, 1, 'w', 3)")
        session.execute("alter table relay_position drop column writes")
        old, new = Findings(), Findings()

        judge_own_tables("shop", config, old)
        for _ in range(2):
            resource.create_tables()
        judge_own_tables("shop", config, new)

        assert [(fault.value, fault.remedy) for fault in old.faults] == [("relay_position.writes", "run `relay migrate`")]
        assert new.faults == []
        assert list(session.execute("select position, writes from relay_position").fetchall()) == [(7, 0)]
        session.close()

    def test_how_a_block_has_rows_made_is_its_own_matter(self, session: Session, decisions: Decisions) -> None:
        """As it sets it on the driver's connection, which a later block gets: often for the columns of its own tables only."""

        def fails(*given: object) -> Any:
            if len(given) == 1 and isinstance(given[0], psycopg.Cursor):
                return fails  # psycopg asks for what makes the rows
            raise LookupError("no such column")

        for number in (1, 2):
            capture = self.begin(session)
            cursor = session.execute("select id, what from orders")
            assert [type(row) for row in session.execute("select 1 union select 2").fetchall()] == [tuple, tuple]
            cursor.connection.row_factory = fails
            session.execute(f"insert into orders values ({number}, 'tea')")
            assert session.is_intact(capture)
            session.decide(capture, PLACED)
            assert decisions.read([capture])[capture].committed
            assert session.usable


class TestPostgresql(Migrated):
    """PostgreSQL."""

    @pytest.fixture
    def url(self, postgres: str) -> str:
        return postgres

    @pytest.mark.parametrize(("said", "holds"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
    def test_the_decision_is_durable_whatever_the_block_set(self, session: Session, said: str, holds: str) -> None:
        capture = self.begin(session)
        session.execute(f"set local synchronous_commit = {said}")
        session.execute(
            "create function watch() returns trigger language plpgsql as $$ begin "
            "insert into orders values (1, current_setting('synchronous_commit')); return null; end $$"
        )
        session.execute(
            "create constraint trigger watching after update on relay_capture deferrable initially deferred "
            "for each row execute function watch()"
        )
        session.decide(capture, PLACED)
        assert self.rows(session) == [(1, holds)]

    def test_a_frozen_publisher_and_a_server_that_falls_silent_end_in_seconds(
        self, resource: Resource, session: Session
    ) -> None:
        decisions: Any = resource.decisions()
        publishing: Any = session
        for connection, limits in ((publishing._connection, ("30s", "0")), (decisions._connection, ("30s", f"{LOCK_TIMEOUT_S * 1000:g}ms"))):
            said = [connection.execute(f"show {name}").fetchone()[0] for name in ("idle_in_transaction_session_timeout", "lock_timeout")]
            assert tuple(said) == limits
            assert connection.info.get_parameters()["tcp_user_timeout"] == "10000"
        decisions.close()

    def test_a_pause_that_is_longer_than_the_server_can_count_is_the_longest_that_it_can(self, url: str) -> None:
        """Of milliseconds it counts 31 bits, 24 days; a handler may be given 30, and a lease any time."""
        with PostgresqlResource("shop", url, LOCK_TIMEOUT_S).connect(idle_in_transaction_session_timeout=30 * 86_400) as connection:
            assert connection.execute("show idle_in_transaction_session_timeout").fetchone() == ("2147483647ms",)

    def test_a_session_without_a_descriptor_to_look_after_it_says_so(
        self, resource: Resource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_descriptor: int) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(patience.os, "dup", full)
        with pytest.raises(Unreachable, match=r"resources\.shop: Too many open files; this process is at one of its limits"):
            resource.session()

    def test_nobody_who_watches_the_server_reads_a_nonce(self, url: str, session: PostgresqlSession) -> None:
        backend = session._pgconn.backend_pid
        with psycopg.connect(url, autocommit=True) as watcher:

            def seen() -> str:
                rows = watcher.execute("select query from pg_stat_activity where pid = %s", (backend,)).fetchall()
                return str(rows[0][0])

            session._hand_over()
            handed_over = seen()
            capture, nonce = session.begin()
            begun = seen()
            session.decide(capture, PLACED)
            decided = seen()
        assert "relay.nonces" in handed_over
        assert "relay_enter" in begun
        assert "commit" in decided
        for spelt in (nonce.hex(), repr(nonce), str(int.from_bytes(nonce, "big"))):
            assert spelt not in handed_over + begun + decided

    def test_a_capture_costs_as_many_round_trips_as_a_bare_transaction(
        self, session: PostgresqlSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session.decide(self.begin(session), PLACED)
        asked, ask = [], session._ask

        def counted(call: Callable[..., PGresult], *what: Any) -> PGresult:
            asked.append(what[0])
            return ask(call, *what)

        monkeypatch.setattr(session, "_ask", counted)
        session.decide(self.begin(session), PLACED)

        begun, decided = asked
        assert begun.startswith(b"begin; ")
        assert decided.endswith(b"; commit")

    def test_nonces_are_handed_over_again_when_all_are_used(self, session: Session, decisions: Decisions) -> None:
        begun = {}
        for _ in range(2 * postgresql_session._NONCES_AT_ONCE + 1):
            capture, nonce = session.begin()
            session.decide(capture, PLACED)
            begun[capture] = nonce

        rows = decisions.read(list(begun))

        assert {capture: row.nonce for capture, row in rows.items()} == begun
        assert len(set(begun.values())) == len(begun)

    @pytest.mark.parametrize(
        "said", ["reset all", "discard all", "set relay.nonces = ''", f"set relay.nonces = '{'ab' * 1024}'"]
    )
    def test_a_session_that_lost_the_nonces_handed_over_begins_nothing_and_is_replaced(
        self, session: Session, decisions: Decisions, said: str
    ) -> None:
        self.begin(session)
        session.rollback()
        self.outside(session, said)

        with pytest.raises(Unreachable, match="cannot begin"):
            session.begin()

        assert not session.usable
        assert decisions.unmarked(-1.0, 10) == []

    @pytest.mark.parametrize("strings", ["on", "off"])
    def test_a_setting_about_backslashes_changes_no_value(
        self, session: Session, decisions: Decisions, strings: str
    ) -> None:
        session.execute(f"set standard_conforming_strings = {strings}")
        capture = self.begin(session)
        session.execute(f"set local standard_conforming_strings = {strings}")

        session.decide(capture, PLACED)

        assert decisions.read([capture])[capture].committed
        (row,) = decisions.unmarked(-1.0, 10)
        assert (row.capture, row.partitions) == (capture, PLACED)

    def test_a_block_may_look_for_its_tables_in_another_schema(self, session: Session, decisions: Decisions) -> None:
        session.execute("create schema elsewhere")
        capture = self.begin(session)
        session.execute("set local search_path = elsewhere")
        session.execute("create table orders (id integer)")

        session.decide(capture, PLACED)

        assert decisions.read([capture])[capture].committed

    def test_a_block_that_keeps_a_role_without_rights_is_told_what_to_do(
        self, session: Session, decisions: Decisions
    ) -> None:
        role = sql.Identifier(f"clerk_{secrets.token_hex(4)}")
        session.execute(sql.SQL("create role {}").format(role))
        try:
            capture = self.begin(session)
            session.execute(sql.SQL("set local role {}").format(role))
            with pytest.raises(CommitRefused, match="reset role"):
                session.decide(capture, PLACED)
        finally:
            self.outside(session, sql.SQL("drop role {}").format(role))
        assert decisions.read([capture]) == {}
        assert session.usable

    @pytest.mark.parametrize("then", ["begin read only", "begin; deallocate all", "begin; set local role {role}"])
    def test_a_proof_that_is_refused_is_no_refusal_of_what_the_block_committed_itself(
        self, session: Session, decisions: Decisions, then: str
    ) -> None:
        role = sql.Identifier(f"clerk_{secrets.token_hex(4)}")
        session.execute(sql.SQL("create role {}").format(role))
        try:
            capture = self.begin(session)
            session.execute("commit")
            for statement in then.split(";"):
                session.execute(sql.SQL(statement).format(role=role))

            with pytest.raises((CommitRefused, NotTheTransactionBegun)):
                session.decide(capture, PLACED)
        finally:
            self.outside(session, sql.SQL("drop role {}").format(role))
        assert not session.is_undone(capture)
        assert decisions.read([capture])[capture].committed

    def test_a_session_whose_tables_went_back_to_what_they_were_is_replaced(self, session: Session) -> None:
        capture = self.begin(session)
        session.execute("alter table orders add column note text")
        for _ in range(7):
            session.execute("select * from orders where id > %s", (0,))
        session.rollback()

        assert not session.usable, "the driver's prepared statement returns a column that there is no more"
        assert session.is_undone(capture)

    def test_a_session_that_the_driver_is_still_busy_with_is_replaced(self, session: PostgresqlSession) -> None:
        session.execute("listen news")
        capture = self.begin(session)
        for _ in range(3):
            session.execute("notify news")
        session.decide(capture, PLACED)
        second = self.begin(session)
        session.execute("select 1")
        suspended = session._connection.notifies(timeout=2)
        next(suspended)
        session.decide(second, PLACED)

        assert not session.usable

    def test_a_commit_that_is_cancelled_when_it_is_on_the_disk_is_a_commit(
        self, session: PostgresqlSession, decisions: Decisions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask = session._ask

        def cancelled(call: Callable[..., PGresult], *what: Any) -> PGresult:
            result = ask(call, *what)
            # What a server answers that was told to cancel while it waited for its disk, and looked only after that.
            return session._pgconn.exec_(b"select 1 / 0") if what[0].endswith(b"; commit") else result

        monkeypatch.setattr(session, "_ask", cancelled)
        capture = self.begin(session)

        session.decide(capture, PLACED)

        assert decisions.read([capture])[capture].committed
        assert session.usable

    def test_a_transaction_that_the_block_prepared_may_be_committed_yet(
        self, session: Session, decisions: Decisions
    ) -> None:
        capture = self.begin(session)
        prepared = sql.Literal(capture.hex())
        session.execute(sql.SQL("prepare transaction {}").format(prepared))
        assert not session.is_undone(capture)
        session.execute(sql.SQL("commit prepared {}").format(prepared))
        assert decisions.read([capture])[capture].committed

    def have_the_driver_prepare(self, session: Session) -> None:
        session.execute("create table lines (id integer)")
        for number in range(10):
            session.execute("insert into lines values (%s)", (number,))

    def test_a_block_that_drops_a_table_commits_whatever_the_driver_forgets_with_it(
        self, session: Session, decisions: Decisions
    ) -> None:
        self.have_the_driver_prepare(session)
        first = self.begin(session)
        session.execute("drop table lines")
        session.decide(first, PLACED)
        second = self.begin(session)
        session.decide(second, PLACED)

        assert [row.committed for row in decisions.read([first, second]).values()] == [True, True]
        assert session.usable

    def test_a_table_dropped_behind_the_session_is_named_as_what_took_the_statements_away(
        self, session: Session, decisions: Decisions
    ) -> None:
        self.have_the_driver_prepare(session)
        capture = self.begin(session)
        session.execute("select 1").execute("drop table lines")

        with pytest.raises(CommitRefused, match="one statement at a time"):
            session.decide(capture, PLACED)

        assert decisions.read([capture]) == {}
        again = self.begin(session)
        session.decide(again, PLACED)
        assert decisions.read([again])[again].committed

    def test_a_database_that_says_nothing_about_characters(self, url: str) -> None:
        database = f"ascii_{secrets.token_hex(4)}"
        name = sql.Identifier(database)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(sql.SQL("create database {} encoding 'SQL_ASCII' locale 'C' template template0").format(name))
            try:
                resource = self.opened(url.rpartition("/")[0] + f"/{database}")
                resource.create_tables()
                session, decisions = resource.session(), resource.decisions()
                capture = self.begin(session)
                session.decide(capture, PLACED)
                assert decisions.read([capture])[capture].committed
                assert [(row.capture, row.partitions) for row in decisions.unmarked(-1.0, 10)] == [(capture, PLACED)]
                assert len(resource.identity().uuid) == 36
                session.close()
                decisions.close()
            finally:
                admin.execute(sql.SQL("drop database {} with (force)").format(name))

    def test_a_division_by_zero_on_commit_is_the_applications_own(self, session: Session, decisions: Decisions) -> None:
        session.execute(
            "create function average() returns trigger language plpgsql as $$ begin perform 1 / 0; return null; end $$"
        )
        session.execute(
            "create constraint trigger averaging after insert on orders deferrable initially deferred "
            "for each row execute function average()"
        )
        capture = self.begin(session)
        session.execute("insert into orders values (1, 'tea')")
        with pytest.raises(CommitRefused, match="division"):
            session.decide(capture, PLACED)
        assert decisions.read([capture]) == {}

    def test_a_decision_over_more_partitions_than_the_network_takes_at_once(self, session: PostgresqlSession) -> None:
        placed = orjson.dumps([["orders", partition, 1, 1] for partition in range(10_000)])
        capture = self.begin(session)
        with socket.socket(fileno=os.dup(session._pgconn.socket)) as narrow:
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)

        session.decide(capture, placed)

        assert session.usable

    def test_a_database_that_is_away_is_unreachable(self) -> None:
        away = open_resource("shop", "postgresql://nobody:canary@127.0.0.1:1/none")
        with pytest.raises(Unreachable) as caught:
            away.session()
        assert "canary" not in str(caught.value)


class TestSqlite(Migrated):
    """SQLite."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/shop.db"

    def test_what_is_committed_is_on_the_disk(self, session: Session) -> None:
        asked = [session.execute(f"pragma {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

        assert asked == ["wal", 2], "FULL: a decision that was told outlasts the machine"

    def test_the_writer_that_holds_the_file_is_named(self, resource: Resource, session: Session) -> None:
        assert resource.frozen_writer() is None
        self.begin(session)
        assert resource.frozen_writer() == os.getpid()

    def test_a_connection_on_which_a_cursor_was_left_open_is_replaced_and_nobody_is_blamed(
        self, resource: Resource, session: Session
    ) -> None:
        for number in (1, 2):
            session.execute("insert into orders values (?, 'tea')", (number,))
        session.decide(self.begin(session), PLACED)
        capture = self.begin(session)
        left_open = self.outside(session, "select * from orders")
        left_open.fetchone()
        session.decide(capture, PLACED)
        assert session.usable
        another = resource.session()
        another.decide(self.begin(another), PLACED)
        another.close()

        with pytest.raises(Unreachable, match="cursor"):
            self.begin(session)

    def test_rows_that_a_statement_returns_and_nobody_fetched_are_named(
        self, resource: Resource, session: Session
    ) -> None:
        capture = self.begin(session)
        left_open = self.outside(session, "insert into orders values (1, 'tea'), (2, 'milk') returning id")

        with pytest.raises(CommitRefused, match="fetch"):
            session.decide(capture, PLACED)

        assert left_open is not None
        assert not session.usable, "the statement would refuse the next COMMIT too"
        another = resource.session()
        assert another.execute("select * from orders").fetchall() == []
        another.decide(self.begin(another), PLACED)
        another.close()

    def test_a_file_that_is_away_is_unreachable(self, tmp_path: Path) -> None:
        with pytest.raises(Unreachable):
            open_resource("shop", f"sqlite:///{tmp_path}/none/shop.db").session()
