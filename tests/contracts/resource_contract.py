"""What capture asks of every resource manager; PostgreSQL and SQLite inherit the same cases."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.message.errors import CaptureFenced, ConfigError
from relay.message.identity import capture_id
from relay.resources import open_resource
from relay.resources.port import (
    CommitRefused,
    Decisions,
    NotTheTransactionBegun,
    Resource,
    RowLocked,
    Session,
)
from relay.world import randomness

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
        return list(self.outside(session, "select id, what from orders order by id").fetchall())

    def outside(self, session: Any, statement: Any) -> Any:
        """Run a statement on the session's connection, with a cursor that is no block's, and return it."""
        return session.execute(statement)

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

    def test_a_row_that_a_block_committed_by_itself_is_never_trimmed(self, session: Session, decisions: Decisions) -> None:
        """It does not say where its messages lie: who asked for one later took a capture for aborted that had been delivered."""
        capture = self.begin(session)
        session.execute("commit")
        session.rollback()
        assert [(row.capture, row.partitions) for row in decisions.unmarked(0.0, 10)] == [(capture, None)]

        decisions.mark([capture])

        assert decisions.unmarked(0.0, 10) == []
        assert decisions.aged(-1.0, 10) == []
