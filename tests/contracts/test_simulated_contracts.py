"""The simulated database keeps the contracts of the real ones: what a simulation proves on it holds for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.message.errors import InDoubt, Retriable, Unreachable
from relay.resources.port import AnswerLost, Resource
from relay.transfer.cursor import TableCursor
from tests.contracts.resource_contract import LOCK_TIMEOUT_S, PLACED, ResourceContract
from tests.contracts.table_databases import LEDGER, P0, Store, message, plan
from tests.contracts.test_table_cursor_contract import TableCursorContract
from tests.simulation.database_cursor import SimulatedCursor
from tests.simulation.database_resource import SimulatedResource, SimulatedSession
from tests.simulation.databases import Backend, Database, Row, Weather
from tests.simulation.scratch_sql import run_sql
from tests.simulation.still import StillWorld


class TestSimulatedResource(ResourceContract):
    """The resource of a simulated database."""

    @pytest.fixture
    def url(self) -> str:
        return "simulated:shop"

    @pytest.fixture
    def database(self) -> Database:
        return Database(StillWorld())

    @pytest.fixture(autouse=True)
    def _given(self, database: Database) -> None:
        self.database = database

    def opened(self, url: str) -> Resource:
        return SimulatedResource("shop", self.database, LOCK_TIMEOUT_S)

    def test_a_database_that_is_away_is_unreachable(self, resource: Resource, database: Database) -> None:
        database.crash(5.0)
        with pytest.raises(Unreachable):
            resource.session()
        database.world.sleep(5.0)
        resource.session()

    @pytest.mark.parametrize(
        ("weather", "committed"), [(Weather(commit_answer_lost=1.0), True), (Weather(commit_request_lost=1.0), False)]
    )
    def test_a_lost_answer_to_commit_says_nothing_of_the_decision(
        self, session: SimulatedSession, database: Database, weather: Weather, committed: bool
    ) -> None:
        capture = self.begin(session)
        database.weather = weather
        with pytest.raises(AnswerLost):
            session.decide(capture, PLACED)
        database.weather = Weather()
        decisions = self.opened("").decisions()
        if not committed:
            database.world.sleep(1.0)
            decisions.abort_if_undecided(capture)
        assert decisions.read([capture])[capture].committed is committed

    def test_a_crash_keeps_what_was_committed_and_nothing_else(
        self, session: SimulatedSession, database: Database
    ) -> None:
        kept = self.begin(session)
        session.decide(kept, PLACED)
        lost = self.begin(session)
        database.crash(0.0)
        assert self.opened("").decisions().read([kept, lost]).keys() == {kept}


class SimulatedStore(Store):
    url: Any

    def __init__(self) -> None:
        self.database = Database(StillWorld())
        self.database.create_relay_tables("uuid")
        self.url = self.database
        self.all(LEDGER)
        self.database.tables["ledger"].check = _not_negative

    def cursor(self, **over: Any) -> TableCursor:
        return SimulatedCursor(self.database, plan(**over))

    def all(self, query: str) -> list[tuple[Any, ...]]:
        return run_sql(Backend(self.database, "test", 1.0, 30.0), query).fetchall()


def _not_negative(row: Row) -> str | None:
    if row["total"] is None:
        return "not_null_violation"
    return None if isinstance(row["total"], int) and row["total"] >= 0 else "check_violation"


class TestSimulatedCursor(TableCursorContract):
    """The cursor of a simulated database."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        return SimulatedStore()  # type: ignore[return-value]

    def test_a_lost_answer_is_in_doubt_and_the_repeat_finds_it_out(self, store: SimulatedStore) -> None:
        cursor = store.cursor()
        cursor.claim({P0: b"t" * 16})
        batch = cursor.prepare([message(0), message(1)])
        store.database.weather = Weather(commit_answer_lost=1.0)
        with pytest.raises(InDoubt):
            cursor.deliver({P0: 2}, batch)
        store.database.weather = Weather(commit_request_lost=1.0)
        with pytest.raises(InDoubt):
            cursor.deliver({P0: 2}, batch)
        store.database.weather = Weather()
        assert len(cursor.deliver({P0: 2}, batch)) == 2
        assert store.ids() == ["m-0-0", "m-0-1"]

    def test_a_crash_before_the_commit_leaves_nothing(self, store: SimulatedStore) -> None:
        cursor = store.cursor()
        cursor.claim({P0: b"t" * 16})
        store.database.crash(1.0)
        with pytest.raises(Retriable):
            cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        store.database.world.sleep(2.0)
        assert store.position() is None
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        assert store.ids() == ["m-0-0"]

    def test_a_row_that_another_transaction_holds_is_waited_for_and_then_tried_again(self, store: SimulatedStore) -> None:
        cursor = store.cursor()
        cursor.claim({P0: b"t" * 16})
        other = Backend(store.database, "other", 1.0, 30.0)
        other.begin()
        ((key, _),) = other.items("relay_position")
        other.lock("relay_position", key)
        with pytest.raises(Retriable):
            cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        other.rollback()
        cursor.deliver({P0: 1}, cursor.prepare([message(0)]))
        assert store.ids() == ["m-0-0"]
