"""A batch is decided as one: what one of its messages may not have, none gets, and what one leaves elsewhere has its outcome."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.message.errors import ConfigError, RelayError, Stopped, Unreachable
from relay.message.errors import InDoubt as UnknownOutcome
from relay.queue.message import Audience, Group, NewMessage, Taken
from relay.queue.port import Filter, Holder, QueueStore, StoreAway
from relay.queue.recovery import Recovery
from relay.queue.settings import QueueSettings
from relay.queue.states import PublisherState, SubscriberState
from relay.queue.stores import bind_store, open_store
from relay.resources.schema import statements
from relay.work.desk import CallOver, CommitTooLong, DatabaseAway, EffectsInDoubt
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Database, Desks
from relay.work.dispatch import Outcome, Work
from relay.work.further import Further
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler
from relay.world import clock, schedule
from tests.contracts.queue_book import QueueBook

HOLDER = b"a worker--------"


def settings(name: str) -> QueueSettings:
    return QueueSettings(name, Audience((Group("s", ("s",)),)))


class Book(QueueBook):
    """A queue that takes children, and does not show them while it is away."""

    is_away = False
    discarding: RelayError | None = None

    def accept(self, handles: list[int], now: int) -> list[bool]:
        if self.is_away:
            raise StoreAway("the store does not answer")
        return super().accept(handles, now)

    def discard(self, handles: list[int], now: int) -> list[bool]:
        if self.discarding is not None:
            raise self.discarding
        return super().discard(handles, now)


class Site:
    """Two messages of a queue, taken together; a handler's table in the same file, or no database at all."""

    def __init__(self, folder: Path, *, has_database: bool) -> None:
        self.file, self.far = folder / "shop.db", Book(settings("far"))
        self.store: QueueStore = open_store(settings("q"), f"sqlite:///{self.file}")
        self.store.enter(Holder(HOLDER, "s", 0, None))
        self.store.put([NewMessage("p", str(number), b"") for number in (1, 2)], 1)
        self.taken = self.store.take("s", HOLDER, 2, 1)
        self.stores: Mapping[str, QueueStore] = {"q": self.store, "far": self.far}
        with sqlite3.connect(self.file) as file:
            file.execute("create table effect (number integer)")
        self.desks = Desks(self._desk, 1) if has_database else None

    def _desk(self) -> SqliteDesk:
        file = sqlite3.connect(self.file, isolation_level=None, timeout=20)
        return SqliteDesk("shop", file, lambda to: {"q": bind_store(settings("q"), f"sqlite:///{self.file}", to)}, schedule.lock())

    def end(
        self, function: Callable[..., None], further: Callable[[str], Further] = lambda _: Further(), *, also: str | None = None
    ) -> set[Outcome]:
        """Run the function on the batch; each message publishes to the other queue, and to a third one that is named."""

        def handle(messages: list[Message], *databases: Database) -> None:
            for message in messages:
                for queue in ("far", also):
                    if queue is not None:
                        message.publish(queue, b"child")
            for database in databases:
                database.execute("insert into effect values (1)")
            function()

        return self.run(handle, further)

    def run(self, handle: Callable[..., None], further: Callable[[str], Further] = lambda _: Further()) -> set[Outcome]:
        """Run a handler on the batch."""
        place = Place("q", "s", "queue:q", self.stores, {name: schedule.lock() for name in self.stores})
        handler = Handler("q", handle, "shop" if self.desks else None, 2, "queue")
        return {end.outcome for end in Runner(handler, place, self.desks, further)(Work(tuple(self.taken)))}

    def states(self) -> list[SubscriberState | None]:
        return self.store.holds("s", [one.ticket for one in self.taken])

    def effects(self) -> int:
        with sqlite3.connect(self.file) as file:
            return int(file.execute("select count(*) from effect").fetchone()[0])

    def close(self) -> None:
        if self.desks is not None:
            self.desks.close()
        self.store.close()


@pytest.fixture(params=[True, False], ids=["in its database", "in its queue"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, has_database=request.param)
    yield made
    made.close()


def shown(book: QueueBook) -> int:
    return len(book.find(Filter(state=PublisherState.REVEALED), limit=10))


@pytest.mark.parametrize("number", [0, 1])
def test_a_batch_of_which_another_worker_has_one_message_by_now_leaves_nothing_of_any(site: Site, number: int) -> None:
    lost: Taken = site.taken[number]
    site.store.free("s", [lost.ticket], 2)

    outcomes = site.end(lambda: None)

    assert outcomes == {Outcome.APART}, "what it put may be there still, under the name of its attempt"
    assert site.states()[1 - number] is SubscriberState.FETCHED
    assert site.effects() == 0
    assert {view.state for view in site.far.find(Filter(), limit=10)} == {PublisherState.DELETED}, "taken back at once"
    Recovery(site.stores, {"queue:q": site.store}).children("far", 3)
    assert shown(site.far) == 0


@pytest.mark.parametrize(
    "error",
    [
        StoreAway("it does not answer"),
        UnknownOutcome("the answer was lost"),
        Stopped("the store is damaged"),
        ConfigError("a right is missing"),
    ],
)
def test_children_that_cannot_be_taken_back_now_are_left_to_recovery_and_change_nothing(site: Site, error: RelayError) -> None:
    """Else what is lost, or has failed, would be taken for a message that waits for the other queue, and be tried for ever."""
    site.store.free("s", [site.taken[0].ticket], 2)
    site.far.discarding = error

    assert site.end(lambda: None) == {Outcome.APART}

    site.far.discarding = None
    Recovery(site.stores, {"queue:q": site.store}).children("far", 3)
    assert shown(site.far) == 0


def test_a_store_that_is_in_the_way_keeps_no_other_stores_children_from_being_taken_back(site: Site) -> None:
    site.store.free("s", [site.taken[0].ticket], 2)
    other = Book(settings("other"))
    site.stores = {**site.stores, "other": other}
    site.far.discarding = Stopped("the store is damaged")

    site.end(lambda: None, also="other")

    assert {view.state for view in other.find(Filter(), limit=10)} == {PublisherState.DELETED}


@pytest.mark.timeout(30)  # a connection that is not free again is waited for
def test_what_a_handler_did_before_it_raised_is_taken_back_and_its_connection_is_free_again(tmp_path: Path) -> None:
    site, given_up = Site(tmp_path, has_database=True), list[str]()

    class Used(Further):
        def give_up(self) -> None:
            given_up.append("used")

    def fails() -> None:
        raise ValueError

    assert site.end(fails, lambda _: Used()) == {Outcome.SPLIT}
    assert (site.effects(), shown(site.far), given_up) == (0, 0, ["used"])
    assert site.end(lambda: None) == {Outcome.WRITTEN}
    assert site.effects() == 1
    site.close()


def test_children_elsewhere_show_with_the_decision_and_wait_for_no_recovery(site: Site) -> None:
    assert site.end(lambda: None) == {Outcome.WRITTEN}
    assert shown(site.far) == 2


def test_a_handler_that_takes_its_messages_out_of_the_list_loses_none_of_their_children(site: Site) -> None:
    kept: list[Message] = []

    def handle(messages: list[Message], *_: Database) -> None:
        while messages:
            kept.append(messages.pop())
            kept[-1].publish("far", b"child")

    assert site.run(handle) == {Outcome.WRITTEN}
    assert shown(site.far) == 2
    with pytest.raises(CallOver):
        kept[0].publish("far", b"too late")


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_handler_that_has_its_rows_made_into_something_else_is_done_all_the_same(fails_first: bool, tmp_path: Path) -> None:
    """The statements that follow on its connection are the relay's, and so are those that look for an outcome."""
    site = Site(tmp_path, has_database=True)
    fails = [ValueError] if fails_first else []

    def handle(messages: list[Message], db: Database) -> None:
        connection = db.execute("insert into effect values (1)").connection
        connection.row_factory = lambda cursor, row: {column[0]: one for column, one in zip(cursor.description, row, strict=True)}
        connection.text_factory = bytes
        messages[0].publish("q", b"child")
        if fails:
            raise fails.pop()

    outcomes = [site.run(handle) for _ in range(1 + fails_first)]
    assert outcomes[-1] == {Outcome.WRITTEN}
    assert (site.effects(), site.states()) == (1, [SubscriberState.DONE] * 2)
    site.close()


def test_what_is_looked_up_on_a_connection_has_plain_rows_whatever_an_earlier_handler_made_of_them(tmp_path: Path) -> None:
    site = Site(tmp_path, has_database=True)
    with sqlite3.connect(site.file) as file:
        for statement in statements("sqlite"):
            file.execute(statement)
    assert site.desks is not None
    desk = site.desks.borrow()
    desk.execute("select 1").connection.row_factory = lambda _, row: {"value": row[0]}
    desk.rollback()

    desk.begin()
    assert desk.outcomes.settle("an attempt", committed=True, now=1) is True
    desk.commit()
    site.desks.give_back(desk)
    site.close()


class InDoubt(Further):
    """Was used, and does not know whether what it prepared is committed."""

    is_begun = True

    def finish(self) -> bool:
        return False


class Unforeseen(InDoubt):
    """Fails as nobody foresaw once the attempt is decided: taken for the handler's failure, it would have a second effect."""

    def finish(self) -> bool:
        raise RuntimeError


@pytest.mark.parametrize("further", [InDoubt, Unforeseen])
def test_children_do_not_wait_for_a_further_database_that_recovery_has_to_ask(tmp_path: Path, further: type[Further]) -> None:
    site = Site(tmp_path, has_database=True)

    assert site.end(lambda: None, lambda _: further()) == {Outcome.WRITTEN}
    assert shown(site.far) == 2
    site.close()


def test_what_a_batch_left_in_a_store_that_went_away_is_shown_by_its_outcome(site: Site) -> None:
    def goes_away() -> None:
        site.far.is_away = True

    assert site.end(goes_away) == {Outcome.WRITTEN}
    assert site.states() == [SubscriberState.DONE] * 2
    assert shown(site.far) == 0

    site.far.is_away = False
    Recovery(site.stores, {"queue:q": site.store}).children("far", 3)

    assert shown(site.far) == 2


@pytest.mark.timeout(30)  # the one connection is waited for where a question has kept it
@pytest.mark.parametrize("error", [EffectsInDoubt, CommitTooLong])
@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_commit_without_an_answer_is_what_the_handlers_database_says_of_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[EffectsInDoubt], is_durable: bool, count: int
) -> None:
    monkeypatch.setattr(clock, "sleep", lambda _: None)
    site = Site(tmp_path, has_database=True)
    with closing(sqlite3.connect(site.file, isolation_level=None)) as file:
        for statement in statements("sqlite"):
            file.execute(statement)
    desk = SqliteDesk("shop", sqlite3.connect(site.file, isolation_level=None), lambda _: {}, schedule.lock())
    commit, failures = desk.commit, [error("the answer was lost"), EffectsInDoubt("so is that of the question")]

    def lost() -> None:
        (commit if is_durable or len(failures) < 2 else desk.rollback)()
        if failures:
            desk.rollback()
            raise failures.pop(0)

    settle, refusals = desk.outcomes.settle, [DatabaseAway("the file is held"), Unreachable("resources.shop: it does not answer")]

    def asked(attempt: str, *, committed: bool, now: int) -> bool:
        if refusals and not committed:
            raise refusals.pop()
        return settle(attempt, committed=committed, now=now)

    monkeypatch.setattr(desk.outcomes, "settle", asked)
    desk.commit = lost  # type: ignore[method-assign]
    place = Place("q", "s", "resource:shop", site.stores, {name: schedule.lock() for name in site.stores})

    def handle(_: Any, db: Database) -> None:
        db.execute("insert into effect values (1)")

    handler = Handler("q", handle, "shop", 0 if count == 1 else count, "queue")
    runner = Runner(handler, place, Desks(lambda: desk, 1))
    ends = runner(Work(tuple(site.taken[:count])))

    undone = Outcome.BACK if error is EffectsInDoubt else Outcome.FAILED if count == 1 else Outcome.APART
    assert [end.outcome for end in ends] == [Outcome.DONE if is_durable else undone] * count
    assert (site.effects(), refusals) == (is_durable, [])
    for taken in site.taken[:count]:
        attempts = desk.outcomes
        desk.begin()
        assert attempts.settle(place.attempt(taken), committed=True, now=1) is is_durable, "what was not done may not be done later"
        desk.rollback()
    site.close()


def test_a_commit_without_an_answer_where_the_queue_is_as_well_is_told_by_its_guarded_write(tmp_path: Path) -> None:
    site = Site(tmp_path, has_database=True)  # which has no table of outcomes of attempts
    desk = site._desk()
    commit = desk.commit

    def lost() -> None:
        commit()
        raise EffectsInDoubt("the answer was lost")

    desk.commit = lost  # type: ignore[method-assign]
    site.desks = Desks(lambda: desk, 1)

    assert site.end(lambda: None) == {Outcome.BACK}
    assert site.store.free("s", [one.ticket for one in site.taken], 2) == [False, False]
    assert site.states() == [SubscriberState.DONE] * 2
    site.close()


def test_outcomes_that_could_not_be_forgotten_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, has_database=True)
    asked: list[Any] = []

    class Outcomes:
        def forget(self, names: Any) -> None:
            asked.append(list(names))
            if len(asked) == 1:
                raise DatabaseAway("not now")

    desk = site._desk()
    desk.outcomes = Outcomes()  # type: ignore[assignment]
    place = Place("q", "s", "resource:shop", site.stores, {name: schedule.lock() for name in site.stores})
    runner = Runner(Handler("q", print, "shop", 2, "queue"), place, Desks(lambda: desk, 1))
    names = ["an attempt"]
    monkeypatch.setattr(runner.forgetting, "due", lambda _: names and [names.pop()])
    monkeypatch.setattr(runner.forgetting, "over", names.extend)

    runner.forget_all()
    assert (asked, names) == ([["an attempt"]], ["an attempt"])
    runner.forget_all()
    assert (len(asked), names) == (2, [])
    site.close()
