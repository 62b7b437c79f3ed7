"""A batch that fails while it decides: what it left elsewhere under its attempt's name is decided by no later run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder, QueueStore, StoreAway
from relay.queue.recovery import Recovery
from relay.queue.settings import QueueSettings
from relay.queue.stores import bind_store, open_store
from relay.resources.prepared import EffectTransaction, PreparedEffects
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Database, Desks
from relay.work.dispatch import Dispatch, Ended, Outcome, Work
from relay.work.further import Connections, Further, FurtherDatabase
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler
from relay.world import schedule

HOLDER = b"a worker--------"
AUDIENCE = Audience((Group("s", ("s",)),))
COUNT = 3


class Site:
    """A queue in SQLite, which decides, with messages taken; another queue in another file for their children."""

    def __init__(self, folder: Path) -> None:
        self.settings = QueueSettings("q", AUDIENCE, order="none", tries=1)
        self.file = folder / "shop.db"
        self.url = f"sqlite:///{self.file}"
        self.store = open_store(self.settings, self.url)
        self.out = open_store(QueueSettings("out", AUDIENCE, message_bytes=1000), f"sqlite:///{folder}/out.db")
        self.store.enter(Holder(HOLDER, "s", 0, None))
        self.store.put([NewMessage("p", str(number), b"%d" % number) for number in range(COUNT)], 1)
        self.place = Place(
            "q", "s", "queue:q", {"q": self.store, "out": self.out}, {"q": schedule.lock(), "out": schedule.lock()}
        )
        self.dispatch = Dispatch(1, 1, batch=COUNT)

    def runner(self, handle: Callable[..., None], further: Callable[[str], Further] | None = None) -> Runner:
        """Return a runner, with a database if the handler writes further ones."""
        if further is None:
            return Runner(Handler("q", handle, None, COUNT, "queue"), self.place, None)
        handler = Handler("q", handle, "shop", COUNT, "queue", ("ledger",))
        return Runner(handler, self.place, Desks(self._desk, 1), further)

    def _desk(self) -> SqliteDesk:
        def bind(connection: Any) -> dict[str, QueueStore]:
            return {"q": bind_store(self.settings, self.url, connection)}

        return SqliteDesk("shop", sqlite3.connect(self.file, isolation_level=None), bind, schedule.lock())

    def work_off(self, run: Runner) -> list[list[Ended]]:
        """Do what a worker does until nothing is to be taken; return how each call ended."""
        ended = []
        while taken := self.store.take("s", HOLDER, COUNT, 2):
            self.dispatch.add(taken)
            while (work := self.dispatch.next()) is not None:
                ended.append(list(run(work)))
                self.dispatch.ended(ended[-1])
            writes = self.dispatch.writes()
            self.store.finish("s", writes.done, 2)
            self.store.refuse("s", writes.unusable, 2)
            self.store.free("s", writes.back, 2)
            self.dispatch.written(writes)
        return ended

    def shown(self) -> list[bytes | None]:
        """Return the children that may be taken when recovery has been there."""
        Recovery(self.place.stores, {"queue:q": self.store}).children("out", 3)
        self.out.enter(Holder(HOLDER, "s", 0, None))
        return sorted((one.value for one in self.out.take("s", HOLDER, 10, 4)), key=str)

    def close(self) -> None:
        self.store.close()
        self.out.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def publishing(messages: list[Message]) -> None:
    """The last one's child is too large for its queue, which the queue says when the others' have been put."""
    for one in messages:
        assert one.value is not None
        one.publish("out", one.value + (b"x" * 2000 if one.value == b"2" else b""))


def outcomes(ended: list[list[Ended]]) -> list[list[Outcome]]:
    return [[end.outcome for end in call] for call in ended]


def test_a_child_that_is_refused_takes_back_those_that_were_put_before_it(site: Site) -> None:
    run = site.runner(publishing)

    ended = run(Work(tuple(site.store.take("s", HOLDER, COUNT, 2))))

    assert {end.outcome for end in ended} == {Outcome.APART}
    assert site.out.children(10) == []


def test_what_could_not_be_taken_back_of_a_batch_is_shown_by_none_of_its_messages(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> list[bool]:
        raise StoreAway("its connection is gone")

    monkeypatch.setattr(site.out, "discard", away)
    ended = site.work_off(site.runner(publishing))
    monkeypatch.undo()

    assert outcomes(ended)[0] == [Outcome.APART] * COUNT
    assert sorted(outcomes(ended)[1:], key=str) == [[Outcome.FAILED], [Outcome.WRITTEN], [Outcome.WRITTEN]]
    assert site.shown() == [b"0", b"1"], "each child once"


def test_a_batch_that_left_nothing_elsewhere_runs_on_at_once(site: Site) -> None:
    def failing(messages: list[Message], db: Database) -> None:
        db.execute("create table if not exists seen (number integer)")
        if any(one.value == b"2" for one in messages):
            db.execute("rollback")

    ended = site.work_off(site.runner(failing, lambda _: Further()))

    assert outcomes(ended)[0] == [Outcome.SPLIT] * COUNT
    assert sorted(outcomes(ended)[1:], key=str) == [[Outcome.FAILED], [Outcome.WRITTEN], [Outcome.WRITTEN]]


def test_what_a_batch_left_prepared_is_committed_by_none_of_its_messages(
    site: Site, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = psycopg.connect(postgres, autocommit=True)
    direct.execute("create table entry (number integer, run integer)")
    connections = Connections("ledger", lambda: psycopg.connect(postgres), 1)
    monkeypatch.setattr(EffectTransaction, "give_up", lambda effect: effect.connection.close())

    def handle(messages: list[Message], db: Database, ledger: FurtherDatabase) -> None:
        for one in messages:
            assert one.value is not None
            ledger.execute("insert into entry values (%s, %s)", (int(one.value), len(messages)))
        db.execute("select 1")

    def further(attempt: str) -> Further:
        return Further([FurtherDatabase("shop", attempt, connections)])

    # The deciding transaction refuses the batch when its writes elsewhere are prepared.
    before = Runner._write_outcome

    def refusing(run: Runner, desk: Any, work: Work, *others: Any) -> None:
        if any(one.value == b"2" for one in work.messages):
            raise ValueError
        before(run, desk, work, *others)

    monkeypatch.setattr(Runner, "_write_outcome", refusing)
    ended = site.work_off(site.runner(handle, further))
    effects = PreparedEffects("shop", "ledger", direct)
    Recovery({"q": site.store}, {"queue:q": site.store}).prepared("ledger", effects, 3)

    assert outcomes(ended)[0] == [Outcome.APART] * COUNT
    assert sorted(direct.execute("select * from entry").fetchall()) == [(0, 1), (1, 1)]
    connections.close()
    direct.close()
