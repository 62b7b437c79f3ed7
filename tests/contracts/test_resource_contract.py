"""What capture asks of every resource manager; PostgreSQL and SQLite inherit the same cases."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from psycopg import sql
from psycopg.pq.abc import PGresult

from relay.message.errors import CaptureFenced, ConfigError, Unreachable
from relay.message.identity import capture_id
from relay.resources import open_resource, patience, postgresql_session
from relay.resources.port import (
    CommitRefused,
    Decisions,
    NotTheTransactionBegun,
    Resource,
    RowLocked,
    Session,
)
from relay.resources.postgresql_session import PostgresqlSession
from relay.run import randomness

LOCK_TIMEOUT_S = 0.2
PLACED = b'[["orders",1,7,2]]'


class ResourceContract:
    """The cases."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    def opened(self, url: str) -> Resource:
        return open_resource("shop", url, LOCK_TIMEOUT_S)

    @pytest.fixture
    def resource(self, url: str) -> Resource:
        found = self.opened(url)
        found.create_tables()
        return found

    @pytest.fixture
    def session(self, resource: Resource) -> Iterator[Session]:
        opened = resource.session()
        opened.execute("create table orders (id integer primary key, what text)")
        yield opened
        opened.close()

    @pytest.fixture
    def decisions(self, resource: Resource) -> Iterator[Decisions]:
        opened = resource.decisions()
        yield opened
        opened.close()

    def begin(self, session: Session) -> bytes:
        capture, nonce = session.begin()
        assert capture_id(nonce) == capture
        return capture

    def rows(self, session: Session) -> list[tuple[object, ...]]:
        return list(session.execute("select id, what from orders order by id").fetchall())

    def test_a_database_has_an_identity_that_stays_until_it_is_renewed(self, resource: Resource) -> None:
        first = resource.identity()
        resource.create_tables()
        assert resource.identity() == first
        assert resource.renew_identity() != first.uuid
        assert resource.identity().name == "shop"

    def test_a_database_that_was_never_migrated_is_refused_with_the_remedy(self, url: str) -> None:
        bare = self.opened(url)
        if url.startswith("sqlite"):
            Path(url.removeprefix("sqlite:///")).touch()
        with pytest.raises(ConfigError, match="relay migrate"):
            bare.session()
        with pytest.raises(ConfigError, match="relay migrate"):
            bare.identity()

    def test_commit_writes_effect_and_decision_together(self, session: Session, decisions: Decisions) -> None:
        capture = self.begin(session)
        session.execute("insert into orders values (1, 'tea')")
        assert decisions.read([capture]) == {}
        session.decide(capture, PLACED)
        row = decisions.read([capture])[capture]
        assert row.committed
        assert capture_id(row.nonce or b"") == capture
        assert self.rows(session) == [(1, "tea")]
        assert session.usable

    def test_rollback_leaves_neither(self, session: Session, decisions: Decisions) -> None:
        capture = self.begin(session)
        session.execute("insert into orders values (1, 'tea')")
        session.rollback()
        assert decisions.read([capture]) == {}
        assert self.rows(session) == []
        assert session.usable

    def test_a_living_publisher_is_waited_for(self, session: Session, decisions: Decisions) -> None:
        capture = self.begin(session)
        with pytest.raises(RowLocked):
            decisions.abort_if_undecided(capture)
        session.decide(capture, PLACED)
        decisions.abort_if_undecided(capture)
        assert decisions.read([capture])[capture].committed

    def test_a_fenced_capture_cannot_begin(
        self, session: Session, decisions: Decisions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(randomness, "random_bytes", bytes)
        fenced = capture_id(bytes(16))
        decisions.abort_if_undecided(fenced)
        with pytest.raises(CaptureFenced):
            session.begin()
        assert not decisions.read([fenced])[fenced].committed
        assert session.usable

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    @pytest.mark.parametrize("again", [False, True])
    def test_only_the_transaction_begun_can_be_decided(
        self, session: Session, decisions: Decisions, ending: str, again: bool
    ) -> None:
        capture = self.begin(session)
        session.execute("insert into orders values (1, 'before')")
        session.execute(ending)
        if again:
            session.execute("begin")
        session.execute("insert into orders values (2, 'after')")
        with pytest.raises(NotTheTransactionBegun):
            session.decide(capture, PLACED)
        committed = decisions.read([capture])
        assert (capture in committed) == (ending == "commit")
        if again:
            assert (2, "after") not in self.rows(session)

    @pytest.mark.parametrize(("ending", "undone"), [(None, True), ("rollback", True), ("commit", False)])
    def test_after_a_rollback_a_session_knows_whether_the_block_committed_before(
        self, session: Session, ending: str | None, undone: bool
    ) -> None:
        capture = self.begin(session)
        if ending is not None:
            session.execute(ending)
            session.execute("begin")
        session.rollback()

        assert session.is_undone(capture) is undone
        session.close()
        assert not session.is_undone(capture), "a closed one cannot know"

    def test_a_savepoint_undoes_what_came_after_it(self, session: Session, decisions: Decisions) -> None:
        capture = self.begin(session)
        session.savepoint(1)
        session.execute("insert into orders values (1, 'undone')")
        session.rollback_to(1)
        session.savepoint(1)
        session.execute("insert into orders values (2, 'kept')")
        session.release(1)
        session.decide(capture, PLACED)
        assert self.rows(session) == [(2, "kept")]
        assert decisions.read([capture])[capture].committed

    def test_a_commit_that_the_database_refuses_is_surely_not_committed(
        self, session: Session, decisions: Decisions
    ) -> None:
        session.execute(
            "create table lines (id integer references orders (id) deferrable initially deferred)"
        )
        capture = self.begin(session)
        session.execute("insert into lines values (5)")
        with pytest.raises(CommitRefused):
            session.decide(capture, PLACED)
        assert decisions.read([capture]) == {}
        assert session.usable

    def test_committed_rows_are_marked_and_trimmed_and_aborted_ones_too(
        self, session: Session, decisions: Decisions
    ) -> None:
        capture = self.begin(session)
        session.decide(capture, PLACED)
        aborted = secrets.token_bytes(16)
        decisions.abort_if_undecided(aborted)
        assert [(row.capture, row.partitions) for row in decisions.unmarked(0.0, 10)] == [(capture, PLACED)]
        assert decisions.unmarked(3600.0, 10) == []
        assert {row.capture for row in decisions.aged(-1.0, 10)} == {aborted}
        decisions.mark([capture])
        assert decisions.unmarked(0.0, 10) == []
        assert {row.capture for row in decisions.aged(-1.0, 10)} == {aborted, capture}
        assert decisions.aged(3600.0, 10) == []
        (topic, *_), *_ = orjson.loads(PLACED)
        assert {row.capture for row in decisions.aged(-1.0, 10, [topic[1:], topic])} == {aborted}
        assert {row.capture for row in decisions.aged(-1.0, 10, [topic[1:]])} == {aborted, capture}
        decisions.trim([capture, aborted])
        assert decisions.read([capture, aborted]) == {}


class TestPostgresql(ResourceContract):
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
        session.execute(said)

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
            session.execute(sql.SQL("drop role {}").format(role))
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
            session.execute(sql.SQL("drop role {}").format(role))
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


class TestSqlite(ResourceContract):
    """SQLite."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/shop.db"

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
        left_open = session.execute("select * from orders")
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
        left_open = session.execute("insert into orders values (1, 'tea'), (2, 'milk') returning id")

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
