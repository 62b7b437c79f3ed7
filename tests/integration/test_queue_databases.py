"""What only queues in databases do: several writers at once, other people's transactions, lost answers, alerts."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from relay.message.errors import ConfigError, InDoubt
from relay.queue.alerts import open_alerts
from relay.queue.message import Ticket
from relay.queue.port import Filter, Holder, QueueStore, Retired, StoreAway
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import open_store, sql_text
from relay.queue.stores import postgresql as stores_postgresql
from relay.queue.stores.postgresql import bind_postgresql
from relay.queue.stores.sql_schema import create
from relay.queue.stores.sqlite import bind_sqlite
from relay.resources import patience
from tests.capture_log import PANIC, DatabaseProxy, until
from tests.contracts.queue_media import NOW, message, put, settings
from tests.integration.threads import in_thread

WAIT_S = 30.0
WAITING = """select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'"""


@pytest.fixture
def database(postgres: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        create(connection)
        yield connection


Opened = Callable[..., QueueStore]


@pytest.fixture
def opened(postgres: str, database: psycopg.Connection) -> Iterator[Opened]:
    """Open queues in the database; each call another connection."""
    stores: list[QueueStore] = []

    def open_one(asked: QueueSettings, url: str = postgres) -> QueueStore:
        stores.append(open_store(asked, url))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def one_waits(database: psycopg.Connection) -> bool:
    (count,) = database.execute(WAITING).fetchone() or (0,)
    return bool(count)


def work_off(store: QueueStore, subscriber: str, holder: bytes, log: list[tuple[bytes | None, int]], total: int) -> None:
    """Take and finish until everybody's log is full; a message is noted before it is given back."""
    store.enter(Holder(holder, subscriber, 0, None))
    deadline = time.monotonic() + WAIT_S
    while len(log) < total and time.monotonic() < deadline:
        taken = store.take(subscriber, holder, 7, NOW)
        log += [(one.lane, one.ticket.handle) for one in taken]
        assert all(store.finish(subscriber, [one.ticket for one in taken], NOW))


@pytest.mark.parametrize("names", [[("ann", "bob")], ["ann"]], ids=["pool", "one subscriber"])
def test_two_who_take_at_once_get_nothing_twice_and_every_lane_in_order(opened: Opened, names: list[object]) -> None:
    asked = settings(*names)  # type: ignore[arg-type]
    stores = [opened(asked), opened(asked)]
    total = 300
    stores[0].put([message(f"m{n}", lane=b"lane-%d" % (n % 5)) for n in range(total)], NOW)
    log: list[tuple[bytes | None, int]] = []
    members = [member for group in asked.audience.groups for member in group.members]
    workers = [
        in_thread(lambda n=n: work_off(stores[n], members[n % len(members)], b"holder-%d" % n, log, total))  # type: ignore[misc]
        for n in range(2)
    ]
    for thread, _ in workers:
        thread.join(WAIT_S)

    assert [ended for _, ended in workers] == [[None], [None]]
    assert len(log) == len({handle for _, handle in log}) == total
    for lane in {lane for lane, _ in log}:
        handles = [handle for of, handle in log if of == lane]
        assert handles == sorted(handles)
    assert stores[0].waiting() == 0


def test_who_takes_waits_for_who_takes_of_the_same_lane(opened: Opened, database: psycopg.Connection) -> None:
    asked = settings("ann")
    first, second = opened(asked), opened(asked)
    first.put([message(name, lane=b"l") for name in "ab"], NOW)
    for store, holder in ((first, b"one"), (second, b"two")):
        store.enter(Holder(holder, "ann", 0, None))

    with first.transaction():
        taken = first.take("ann", b"one", 1, NOW)
        thread, ended = in_thread(lambda: second.take("ann", b"two", 2, NOW))
        until(lambda: one_waits(database), "the second taker waits")
    thread.join(WAIT_S)

    assert [one.id for one in taken] == ["a"]
    assert ended == [[]]


def test_who_beats_waits_for_a_take_of_its_holder_and_sees_what_that_took(opened: Opened, database: psycopg.Connection) -> None:
    asked = settings("ann")
    lost, again = opened(asked), opened(asked)
    lost.put([message("a", lane=b"l")], NOW)
    lost.enter(Holder(b"one", "ann", 0, None))

    def looked() -> list[Ticket]:
        with again.transaction():
            again.beat(b"one")
            return again.held(b"one")

    with lost.transaction():
        taken = lost.take("ann", b"one", 1, NOW)
        thread, ended = in_thread(looked)
        until(lambda: one_waits(database), "who looks waits")
    thread.join(WAIT_S)

    assert ended == [[one.ticket for one in taken]]


def test_the_last_two_subscribers_who_end_at_once_journal_the_message(
    opened: Opened, database: psycopg.Connection
) -> None:
    asked = settings("ann", "bob")
    ann, bob = opened(asked), opened(asked)
    (handle,) = put(ann, "m")
    tickets = {}
    for store, name in ((ann, "ann"), (bob, "bob")):
        store.enter(Holder(name.encode(), name, 0, None))
        tickets[name] = [one.ticket for one in store.take(name, name.encode(), 1, NOW)]

    with ann.transaction():
        ann.finish("ann", tickets["ann"], NOW)
        thread, ended = in_thread(lambda: bob.finish("bob", tickets["bob"], NOW))
        until(lambda: one_waits(database), "the second waits for the first")
    thread.join(WAIT_S)

    assert ended == [[True]]
    view = ann.view(handle)
    assert view is not None
    assert view.state is PublisherState.JOURNALLED


def test_a_deadlock_takes_one_back_as_a_whole_and_it_may_be_done_again(
    opened: Opened, database: psycopg.Connection
) -> None:
    asked = settings("ann")
    first, second = opened(asked), opened(asked)
    a, b = put(first, "a", "b")

    def other() -> list[bool]:
        with second.transaction():
            second.prioritise([b], 7)
            ready.set()
            until(lambda: one_waits(database), "the first waits")
            return second.prioritise([a], 7)

    ready = threading.Event()
    thread, ended = in_thread(other)
    mine: list[object] = []
    try:
        with first.transaction():
            first.prioritise([a], 3)
            assert ready.wait(WAIT_S)
            mine.append(first.prioritise([b], 3))
    except StoreAway as error:
        mine = [error]
    thread.join(WAIT_S)

    priorities = {view.priority for view in first.find(Filter())}
    assert sorted(isinstance(end, StoreAway) for end in (*mine, *ended)) == [False, True]
    assert priorities == ({3} if mine == [[True]] else {7})
    assert first.prioritise([a, b], 1) == [True, True]


def test_a_deadlock_of_a_single_call_is_done_again_by_itself(
    postgres: str, opened: Opened, database: psycopg.Connection
) -> None:
    asked = settings("ann")
    # Only the other one looks for deadlocks, so that it is the one that is taken back.
    patient = opened(asked, f"{postgres}?options=-cdeadlock_timeout%3D60s")
    other = opened(asked)
    a, b = put(patient, "a", "b")

    with patient.transaction():
        patient.prioritise([b], 3)
        thread, ended = in_thread(lambda: other.prioritise([a, b], 7))
        until(lambda: one_waits(database), "the other waits for b")
        assert patient.prioritise([a], 3) == [True]
    thread.join(WAIT_S)

    assert ended == [[True, True]]
    assert {view.priority for view in patient.find(Filter())} == {7}


def test_a_queue_retires_only_when_what_is_being_written_is_there(
    opened: Opened, database: psycopg.Connection
) -> None:
    asked = settings("ann")
    writer, mover = opened(asked), opened(asked)

    with writer.transaction():
        put(writer, "late")
        thread, ended = in_thread(mover.retire)
        until(lambda: one_waits(database), "the move waits for the writer")
        assert ended == []
    thread.join(WAIT_S)

    assert ended == [None]
    assert mover.waiting() == 1
    with pytest.raises(Retired):
        put(writer, "too late")


@pytest.mark.parametrize("instead", [b"", PANIC], ids=["nothing", "panic"])
def test_a_commit_whose_answer_is_lost_is_in_doubt_and_found_by_ticket(postgres: str, opened: Opened, instead: bytes) -> None:
    asked = settings("ann")
    direct = opened(asked)
    put(direct, "m")
    direct.enter(Holder(b"h", "ann", 0, None))
    (taken,) = direct.take("ann", b"h", 1, NOW)
    with DatabaseProxy(postgres) as proxy:
        store = opened(asked, proxy.url + "?sslmode=disable")
        proxy.lose_answer_to, proxy.instead = b"commit\0", instead
        with pytest.raises(InDoubt):
            store.finish("ann", [taken.ticket], NOW)
        proxy.lose_answer_to = None

        assert store.holds("ann", [taken.ticket]) == [SubscriberState.DONE]
        assert store.finish("ann", [taken.ticket], NOW) == [False]


def test_a_connection_that_was_lost_before_the_commit_changed_nothing(postgres: str, opened: Opened) -> None:
    asked = settings("ann")
    with DatabaseProxy(postgres) as proxy:
        store = opened(asked, proxy.url + "?sslmode=disable")
        proxy.cut()
        with pytest.raises(StoreAway):
            put(store, "m")

        assert store.waiting() == 0
        assert put(store, "m")


@pytest.mark.parametrize(
    ("at", "told"), [(b"begin isolation", StoreAway), (b"relay_queue_open", StoreAway), (b"copy ", StoreAway), (b"commit\0", InDoubt)]
)
def test_an_answer_that_somebody_swallows_is_not_waited_for_for_ever(
    postgres: str, opened: Opened, at: bytes, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(stores_postgresql, "LOOKING_S", 0.5)
    with DatabaseProxy(postgres) as proxy:
        store = opened(settings(), proxy.url)
        proxy.silent, proxy.lose_answer_to = True, at
        begun = time.monotonic()
        with pytest.raises(told):
            put(store, "a")
        assert time.monotonic() - begun < 10
        proxy.lose_answer_to = None
        monkeypatch.undo()
        assert put(store, "b"), "by another connection"


def test_who_listens_does_not_wait_for_ever_for_a_server_that_swallows_it(
    postgres: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ANSWER_TIMEOUT_S", 0.5)
    opened(settings())
    with DatabaseProxy(postgres) as proxy:
        proxy.silent, proxy.lose_answer_to = True, b"listen "
        begun = time.monotonic()
        alerts = open_alerts("q", proxy.url)
        assert time.monotonic() - begun < 10
        proxy.lose_answer_to = None
        assert alerts.wait("s", 0.1), "what came meanwhile was not heard"
        alerts.close()


def test_a_database_that_only_reads_after_a_failover_is_away(
    postgres: str, opened: Opened, database: psycopg.Connection
) -> None:
    store = opened(settings("ann"))
    database.execute("alter database " + database.info.dbname + " set default_transaction_read_only = on")
    database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )

    with pytest.raises(StoreAway):
        put(store, "a")
    with pytest.raises(StoreAway, match="ReadOnly"):
        put(store, "a")
    with pytest.raises(StoreAway, match="ReadOnly"):
        opened(settings("ann"))

    database.execute("alter database " + database.info.dbname + " reset default_transaction_read_only")
    assert len(put(opened(settings("ann")), "a")) == 1
    assert len(put(store, "b")) == 1, "a session keeps what was said when it began"


def test_a_unit_that_the_server_ends_for_standing_still_is_away(opened: Opened, database: psycopg.Connection) -> None:
    database.execute(
        "alter database " + database.info.dbname + " set idle_in_transaction_session_timeout = 100"
    )
    store = opened(settings("ann"))

    def stand_still() -> None:
        with store.transaction():
            put(store, "a")
            time.sleep(0.5)
            put(store, "b")

    with pytest.raises(StoreAway):
        stand_still()
    assert store.find(Filter()) == []


def test_a_database_that_cannot_be_reached_is_unreachable_and_says_why() -> None:
    with pytest.raises(StoreAway, match="refused") as away:
        open_store(settings("ann"), "postgresql://clerk:c4n4ry@127.0.0.1:1/shop")

    assert away.value.exit_code == 3, "a command about the queue ends as one that asks brokers which are away"
    assert "c4n4ry" not in str(away.value)


def test_without_tables_the_remedy_is_named(postgres: str) -> None:
    with pytest.raises(ConfigError, match="relay migrate"):
        open_store(settings("ann"), postgres)


def test_a_callers_transaction_decides_on_its_own_rows_and_the_queues_together(
    postgres: str, opened: Opened, database: psycopg.Connection
) -> None:
    asked = settings("ann")
    store = opened(asked)
    database.execute("create table effect (n integer)")
    put(store, "m")
    store.enter(Holder(b"h", "ann", 0, None))
    (taken,) = store.take("ann", b"h", 1, NOW)
    with psycopg.connect(postgres) as connection:
        bound = bind_postgresql(asked, connection)
        for decide, effects, state in (
            (connection.rollback, 0, SubscriberState.FETCHED),
            (connection.commit, 1, SubscriberState.DONE),
        ):
            connection.execute("insert into effect values (1)")
            assert bound.finish("ann", [taken.ticket], NOW) == [True]
            bound.put([message("child")], NOW)
            decide()

            assert database.execute("select count(*) from effect").fetchone() == (effects,)
            assert store.holds("ann", [taken.ticket]) == [state]
    assert store.waiting() == 1


def test_a_step_of_trimming_reads_what_it_trims_and_not_all_that_ever_ended(
    opened: Opened, database: psycopg.Connection
) -> None:
    shop = opened(settings("ann"))
    handles = put(shop, *(str(number) for number in range(3000)))
    assert all(shop.expire_now(handles, NOW))
    database.execute("vacuum analyze")
    database.execute("set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off")

    for text in (sql_text.ENDED, sql_text.HELD_OVER):
        query = b"explain (costs off) " + sql_text.postgresql_text(text)
        steps = [str(row[0]).strip() for row in database.execute(query, {"queue": 1, "limit": 10}).fetchall()]
        reads = [steps[at + 1] for at, step in enumerate(steps) if "on relay_queue_delivery" in step]
        assert all("handle = m.handle" in condition or "phase = 4" in condition for condition in reads), steps


def test_who_counts_does_not_stumble_over_a_subscriber_that_was_added_later(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    asked = settings("ann")
    older = open_store(asked, url)
    newer = open_store(replace(asked, audience=settings("ann", "bob").audience), url)
    newer.enter(Holder(b"h", "bob", 0, None))
    put(newer, "a")
    assert len(newer.take("bob", b"h", 1, NOW)) == 1

    assert [waiting.subscriber for waiting in older.counts()[1]] == ["ann"]
    older.close()
    newer.close()


def test_a_callers_transaction_on_a_file_decides_as_well(tmp_path: Path) -> None:
    asked = settings("ann")
    store = open_store(asked, "sqlite:///q.db", state=tmp_path)
    connection = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    bound = bind_sqlite(asked, connection)

    connection.execute("begin immediate")
    put(bound, "m")
    connection.execute("rollback")
    assert store.waiting() == 0
    connection.execute("begin immediate")
    put(bound, "m")
    connection.execute("commit")
    assert store.waiting() == 1
    connection.close()
    store.close()


class TestTrimmedWhileItIsGivenAgain:
    """Whoever republishes and whoever trims: one of them finds out that the other was first."""

    @pytest.fixture
    def ended(self, opened: Opened) -> tuple[QueueStore, QueueStore, int]:
        """Return the queue opened twice, and a message that came to its end UNUSABLE."""
        shop = settings("ann")
        one, other = opened(shop), opened(shop)
        (handle,) = put(one, "a")
        one.enter(Holder(b"h", "ann", 0, None))
        (taken,) = one.take("ann", b"h", 1, NOW)
        assert one.refuse("ann", [(taken.ticket, "broken")], NOW) == [True]
        return one, other, handle

    def test_what_was_trimmed_meanwhile_is_not_given_again(
        self, ended: tuple[QueueStore, QueueStore, int], database: psycopg.Connection
    ) -> None:
        keeper, person, handle = ended
        with keeper.transaction():
            assert keeper.trim([handle]) == 1
            thread, answers = in_thread(lambda: person.republish(handle, "ann", NOW))
            until(lambda: one_waits(database), "the person waits for the keeper")
        thread.join(WAIT_S)

        assert answers == [False]
        assert person.waiting() == 0
        assert [answer.repeat for answer in person.put([message("a")], NOW)] == [False]

    def test_what_was_given_again_meanwhile_is_not_trimmed(
        self, ended: tuple[QueueStore, QueueStore, int], database: psycopg.Connection
    ) -> None:
        keeper, person, handle = ended
        with person.transaction():
            assert person.republish(handle, "ann", NOW)
            thread, answers = in_thread(lambda: keeper.trim([handle]))
            until(lambda: one_waits(database), "the keeper waits for the person")
        thread.join(WAIT_S)

        assert answers == [0]
        assert [taken.value for taken in keeper.take("ann", b"h", 1, NOW)] == [b"a"]
