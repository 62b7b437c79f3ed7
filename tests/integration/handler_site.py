"""A message taken from a queue and the database of its handler, which is run once, here and without a worker."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from relay.queue.message import Audience, Group, NewMessage, Taken
from relay.queue.port import Holder, QueueStore
from relay.queue.recovery import Recovery
from relay.queue.settings import QueueSettings
from relay.queue.states import SubscriberState
from relay.queue.stores import bind_store, open_store
from relay.queue.stores.sql_schema import create
from relay.resources.prepared import PreparedEffects
from relay.work.desk import Desk, EffectsInDoubt
from relay.work.desk_postgresql import PostgresqlDesk
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Database, Desks
from relay.work.dispatch import Ended, Outcome, Work
from relay.work.further import Connections, Further, FurtherDatabase
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler
from relay.world import schedule

HOLDER = b"a worker--------"
SETTINGS = QueueSettings("q", Audience((Group("s", ("s",)),)))
EFFECT = "insert into effect (number) values (1)"
Fate = Callable[[SqliteDesk], None]


class Table:
    """A queue with one message taken, and the handler's table in the same database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        if not self.is_sqlite:
            with psycopg.connect(url) as connection:
                create(connection)
        self.store: QueueStore = open_store(SETTINGS, url)
        # A constraint that only the commit checks.
        self.run(
            "create table known (number integer primary key);"
            "create table effect (number integer references known (number) deferrable initially deferred);"
            "insert into known values (1)"
        )
        self.store.enter(Holder(HOLDER, "s", 0, None))
        self.store.put([NewMessage("p", "1", b"1")], 1)
        (self.taken,) = self.store.take("s", HOLDER, 1, 1)
        self.desks = Desks(self._desk, 1)

    def run(self, text: str) -> list[tuple[Any, ...]]:
        if self.is_sqlite:
            with sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=20) as file:
                if ";" in text:
                    file.executescript(text)
                    return []
                return file.execute(text).fetchall()
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def _desk(self) -> Desk:
        def bind(connection: Any) -> dict[str, QueueStore]:
            return {"q": bind_store(SETTINGS, self.url, connection)}

        if self.is_sqlite:
            file = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=20, check_same_thread=False)
            file.execute("pragma foreign_keys = on")
            return SqliteDesk("shop", file, bind, schedule.lock())
        return PostgresqlDesk("shop", psycopg.connect(self.url, autocommit=True), bind)

    def end(self, function: Callable[[Message, Database], None]) -> Ended:
        """Run the function as handler of the message taken and return how that ended."""
        place = Place("q", "s", "queue:q", {"q": self.store}, {"q": schedule.lock()})
        (ended,) = Runner(Handler("q", function, "shop", 0, "queue"), place, self.desks)(Work((self.taken,)))
        return ended

    def effects(self) -> int:
        return int(self.run("select count(*) from effect")[0][0])

    def state(self, taken: Taken | None = None) -> SubscriberState | None:
        return self.store.holds("s", [(taken or self.taken).ticket])[0]

    def close(self) -> None:
        self.desks.close()
        self.store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """A message in a file, and one in PostgreSQL."""
    is_file = request.param == "sqlite"
    made = Table(f"sqlite:///{tmp_path}/shop.db" if is_file else request.getfixturevalue("postgres"))
    yield made
    made.close()


class OnceCancelled(psycopg.Connection[Any]):
    """What a server answers that is told to cancel while it flushes: the commit is on its disk already."""

    is_due = False

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Run a statement; the first one that ends a transaction when it is due is answered with an error."""
        before = self.info.transaction_status
        answer = super().wait(*arguments, **options)
        ends = (before, self.info.transaction_status) == (TransactionStatus.INTRANS, TransactionStatus.IDLE)
        if ends and self.is_due:
            self.is_due = False
            raise psycopg.errors.QueryCanceled("canceling statement due to user request")
        return answer


class Books:
    """A queue in SQLite, which decides, and a ledger in PostgreSQL; one message is taken."""

    def __init__(self, folder: Path, ledger: str) -> None:
        self.file = folder / "shop.db"
        self.url = f"sqlite:///{self.file}"
        self.store = open_store(SETTINGS, self.url)
        self.store.enter(Holder(HOLDER, "s", 0, None))
        self.store.put([NewMessage("p", "1", b"1")], 1)
        (self.taken,) = self.store.take("s", HOLDER, 1, 1)
        self.direct = psycopg.connect(ledger, autocommit=True)
        self.direct.execute("create table entry (number integer)")
        self.connections = Connections("ledger", lambda: psycopg.connect(ledger), 1)
        self.prepared = PreparedEffects("shop", "ledger", self.direct)
        self.fate: Fate | None = None

    def end(self, function: Callable[[Message, Database, FurtherDatabase], None]) -> Outcome:
        """Run the function as handler of the message taken and return how that ended."""
        place = Place("q", "s", "queue:q", {"q": self.store}, {"q": schedule.lock()})
        handler = Handler("q", function, "shop", 0, "queue", ("ledger",))
        desks = Desks(self._desk, 1)
        runner = Runner(
            handler, place, desks, lambda attempt: Further([FurtherDatabase("shop", attempt, self.connections)])
        )
        (ended,) = runner(Work((self.taken,)))
        desks.close()
        return ended.outcome

    def _desk(self) -> SqliteDesk:
        def bind(connection: Any) -> dict[str, Any]:
            return {"q": bind_store(SETTINGS, self.url, connection)}

        desk = SqliteDesk("shop", sqlite3.connect(self.file, isolation_level=None), bind, schedule.lock())
        if self.fate is not None:
            fate, commit = self.fate, desk.commit

            def lost() -> None:
                fate(desk)
                if desk._open:
                    commit()
                raise EffectsInDoubt("the answer was lost")

            desk.commit = lost  # type: ignore[method-assign]
        return desk

    def recover(self) -> None:
        """What a peer does about a worker that is dead."""
        self.store.free("s", [self.taken.ticket], 2)
        Recovery({"q": self.store}, {"queue:q": self.store}).prepared("ledger", self.prepared, 3)

    def entries(self) -> int:
        row = self.direct.execute("select count(*) from entry").fetchone()
        assert row is not None
        return int(row[0])

    def state(self) -> SubscriberState | None:
        return self.store.holds("s", [self.taken.ticket])[0]

    def close(self) -> None:
        self.connections.close()
        self.direct.close()
        self.store.close()
