"""Outcomes of attempts in a handler's database go once nobody can ask for them any more, and not one step before."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from relay.message.errors import ConfigError
from relay.queue.message import Audience, Group, NewMessage, Taken
from relay.queue.port import Holder, StoreAway
from relay.queue.settings import QueueSettings
from relay.resources.attempts import SqliteAttempts
from relay.resources.schema import statements
from relay.work import forgetting
from relay.work.backoff import Backoff
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Desks
from relay.work.dispatch import Outcome, Work, Writes
from relay.work.forgetting import Forgetting
from relay.work.further import Further
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.states import Report, States
from relay.work.subscriber import subscriber
from relay.world import schedule
from tests.contracts.queue_book import QueueBook

HOLDER = b"a worker--------"
DECIDING = "resource:shop"


class Away(QueueBook):
    """Takes children and does not show them."""

    def accept(self, *_: Any) -> list[bool]:
        raise StoreAway("the store does not answer")


class InDoubt(Further):
    """Does not know whether what was prepared is committed."""

    is_begun = True

    def finish(self) -> bool:
        return False


def child_of_each(message: Message, *_: Any) -> None:
    message.publish("credit", message.value)


class Site:
    """A handler whose queue lies elsewhere than its database, an SQLite file, and one child for each of its messages."""

    def __init__(self, path: Path, credit: QueueBook, further: Callable[[str], Further] = lambda _: Further()) -> None:
        self.shop = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in statements("sqlite"):
            self.shop.execute(statement)
        self.book = book("q")
        self.book.enter(Holder(HOLDER, "s", 0, DECIDING))
        gate = schedule.lock()

        def connected() -> SqliteDesk:
            return SqliteDesk("shop", sqlite3.connect(path, isolation_level=None), lambda _: {}, gate)

        place = Place(
            "q", "s", DECIDING, {"q": self.book, "credit": credit}, {"q": schedule.lock(), "credit": schedule.lock()}
        )
        self.runner = Runner(subscriber("q", resource="shop")(child_of_each), place, Desks(connected, 1), further)
        self.runner.forgetting = Forgetting(0.0)
        self.states = States(self.book, "s", HOLDER, Backoff(), Report(), self.runner.forgetting.done)

    def run(self, number: int) -> Taken:
        """Let a message come and run; its DONE is not written yet."""
        self.book.put([NewMessage("p", str(number), b"")], 1)
        (taken,) = self.book.take("s", HOLDER, 1, 1)
        (end,) = self.runner(Work((taken,)))
        assert end.outcome is Outcome.DONE
        return taken

    def write(self, taken: Taken) -> None:
        self.states.write_and_take(Writes(done=[taken.ticket]), 0, ())

    def kept(self) -> list[str]:
        """The ids of messages whose outcome stands, by handle."""
        rows = self.shop.execute("select attempt from relay_attempt where committed = 1 order by attempt")
        return [attempt.split("/")[-2] for (attempt,) in rows]


def book(name: str, kind: type[QueueBook] = QueueBook) -> QueueBook:
    return kind(QueueSettings(name, Audience((Group("s", ("s",)),))))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(*given: Any) -> Site:
        sites.append(Site(tmp_path / "shop.db", *given))
        return sites[-1]

    yield make
    for site in sites:
        site.shop.close()


def test_what_nobody_asks_for_any_more_goes_with_a_later_message(opened: Callable[..., Site]) -> None:
    site = opened(book("credit"))
    first = site.run(1)
    second = site.run(2)
    assert site.kept() == ["1", "2"], "not before DONE"

    site.write(first)
    third = site.run(3)
    assert site.kept() == ["2", "3"]

    for taken in (second, third):
        site.write(taken)
    site.runner.forget_all()
    assert site.kept() == []


@pytest.mark.parametrize(
    ("credit", "further"),
    [(book("credit", Away), lambda _: Further()), (book("credit"), lambda _: InDoubt())],
    ids=["a child is not shown", "what was prepared is in doubt"],
)
def test_what_recovery_will_ask_for_stays(
    opened: Callable[..., Site], credit: QueueBook, further: Callable[[str], Further]
) -> None:
    site = opened(credit, further)

    site.write(site.run(1))
    site.run(2)
    site.runner.forget_all()

    assert site.kept() == ["1", "2"]


def test_an_aborted_one_stays_since_its_worker_may_come_back(opened: Callable[..., Site]) -> None:
    site = opened(book("credit"))
    outcomes = SqliteAttempts("shop", site.shop)
    for name, committed in (("a", True), ("b", False)):
        outcomes.settle(name, committed=committed, now=1)

    outcomes.forget(["a", "b", "c"])

    assert site.shop.execute("select attempt from relay_attempt").fetchall() == [("b",)]


def test_without_the_right_the_worker_goes_on(opened: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise ConfigError("the role has no right to the relay's tables")

    monkeypatch.setattr(SqliteAttempts, "forget", refused)
    site = opened(book("credit"))

    for number in range(1, 4):
        site.write(site.run(number))

    assert site.kept() == ["1", "2", "3"]


def test_few_wait_for_others_to_go_with_and_many_go_in_pages() -> None:
    out = Forgetting(5.0)
    names: Mapping[Any, str] = {number: str(number) for number in range(forgetting.BATCH + 2)}
    out.left_nothing(names)
    out.done([0])
    assert out.due(10.0) == ["0"]
    out.done([1])
    assert out.due(12.0) == []
    assert out.due(15.0) == ["1"]

    out.done(names)
    assert [len(out.due(16.0)) for _ in range(2)] == [forgetting.BATCH, 0]


def test_of_too_many_that_are_not_done_the_oldest_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "KNOWN_MAX", 2)
    out = Forgetting(0.0)
    names: Mapping[Any, str] = {number: str(number) for number in range(3)}
    out.left_nothing(names)
    out.done([0])
    assert out.due(0.0) == []
    out.done([1, 2])
    assert out.due(0.0) == ["1", "2"]


def test_each_message_of_a_batch_has_an_outcome_of_its_own(opened: Callable[..., Site]) -> None:
    """Recovery asks for each by its name, and would write (aborted) where it finds none."""
    site = opened(book("credit"))
    site.book.put([NewMessage("p", name, b"") for name in ("1", "2")], 1)
    site.runner(Work(tuple(site.book.take("s", HOLDER, 2, 1))))

    assert site.kept() == ["1", "2"]


def test_what_could_not_be_forgotten_now_is_tried_again_with_the_next() -> None:
    out = Forgetting(5.0)
    names: Mapping[Any, str] = {1: "1", 2: "2"}
    out.left_nothing(names)
    out.done([1])
    out.over(out.due(10.0))
    out.done([2])
    assert out.due(14.9) == []
    assert out.due(15.0) == ["1", "2"]


class OwnSite:
    """A handler whose queue's own store decides, in the handler's database or without one, and one child elsewhere."""

    def __init__(self, credit: QueueBook, shop: sqlite3.Connection | None) -> None:
        self.book = book("q")
        for one in (self.book, credit):
            one.enter(Holder(HOLDER, "s", 0, "queue:q"))
        place = Place(
            "q", "s", "queue:q", {"q": self.book, "credit": credit}, {"q": schedule.lock(), "credit": schedule.lock()}
        )
        gate = schedule.lock()
        desks = None if shop is None else Desks(lambda: SqliteDesk("shop", shop, lambda _: {"q": self.book}, gate), 1)
        self.runner = Runner(subscriber("q", resource=None if shop is None else "shop")(child_of_each), place, desks)
        self.runner.forgetting = Forgetting(0.0)

    def run(self, number: int) -> None:
        self.book.put([NewMessage("p", str(number), b"")], 1)
        (end,) = self.runner(Work(tuple(self.book.take("s", HOLDER, 1, 1))))
        assert end.outcome is Outcome.WRITTEN

    def kept(self) -> list[str]:
        return [attempt.split("/")[-2] for attempt, committed in self.book.outcomes() if committed]


@pytest.fixture(params=["in the handler's database", "without a database"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[QueueBook], OwnSite]]:
    connections: list[sqlite3.Connection] = []
    if "without" not in request.param:
        connections.append(sqlite3.connect(tmp_path / "shop.db", isolation_level=None, check_same_thread=False))
    yield lambda credit: OwnSite(credit, connections[0] if connections else None)
    for connection in connections:
        connection.close()


def test_what_the_queues_own_store_decided_goes_as_well(own: Callable[[QueueBook], OwnSite]) -> None:
    credit = book("credit")
    site = own(credit)

    for number in range(1, 4):
        site.run(number)
    site.runner.forget_all()

    assert site.kept() == []
    assert [one.id.split(".")[-2] for one in credit.take("s", HOLDER, 9, 1)] == ["1", "2", "3"], "shown before that"


def test_what_it_decided_stays_while_a_child_waits_for_it(own: Callable[[QueueBook], OwnSite]) -> None:
    site = own(book("credit", Away))

    site.run(1)
    site.run(2)
    site.runner.forget_all()

    assert site.kept() == ["1", "2"]
