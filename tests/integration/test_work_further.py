"""A handler that writes into a further database: with its message's DONE or not at all, whoever finishes it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from structlog.testing import capture_logs

from relay.message.errors import ConfigError, Unreachable
from relay.queue.recovery import Recovery
from relay.queue.states import SubscriberState
from relay.work.desk_sqlite import SqliteDesk
from relay.work.desks import Database, Desks
from relay.work.dispatch import Outcome, Work
from relay.work.further import Connections, Further, FurtherDatabase
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler, subscriber
from relay.world import schedule
from tests.integration.handler_site import Books


def entering(_: Message, __: Database, ledger: FurtherDatabase) -> None:
    ledger.execute("insert into entry values (1)")


def test_the_entry_and_done_go_together(books: Books) -> None:
    assert books.end(entering) is Outcome.WRITTEN

    assert (books.entries(), books.state(), books.prepared.pending()) == (1, SubscriberState.DONE, [])


def test_a_handler_that_does_not_use_it_prepares_nothing(books: Books) -> None:
    assert books.end(lambda *_: None) is Outcome.DONE
    assert books.prepared.pending() == []


def test_a_failure_takes_the_entry_back(books: Books) -> None:
    def failing(message: Message, db: Database, ledger: FurtherDatabase) -> None:
        entering(message, db, ledger)
        raise ValueError("no")

    assert books.end(failing) is Outcome.FAILED

    assert (books.entries(), books.prepared.pending()) == (0, [])
    assert books.connections._free.qsize() == 1, "it is free for another message"


def test_a_worker_that_lost_its_message_leaves_no_entry(books: Books) -> None:
    def overtaken(message: Message, db: Database, ledger: FurtherDatabase) -> None:
        entering(message, db, ledger)
        assert books.store.free("s", [message.taken.ticket], 2) == [True]

    assert books.end(overtaken) is Outcome.LOST

    assert (books.entries(), books.prepared.pending()) == (0, [])


@pytest.mark.parametrize("committed", [True, False])
def test_after_a_lost_answer_recovery_finishes_by_the_outcome(books: Books, committed: bool) -> None:
    books.fate = (lambda _: None) if committed else SqliteDesk.rollback
    assert books.end(entering) is Outcome.BACK
    assert (books.entries(), len(books.prepared.pending())) == (0, 1)
    assert books.connections._free.get_nowait() is None, "its place is free, and not for one that has something prepared"

    books.recover()

    assert (books.entries(), books.prepared.pending()) == (int(committed), [])
    assert books.state() is (SubscriberState.DONE if committed else None)


def test_a_further_database_needs_one_that_decides() -> None:
    with pytest.raises(ConfigError, match="resource that decides"):
        subscriber("q", also=["ledger"])


def test_an_error_that_the_handler_swallows_is_no_success_there_either(books: Books) -> None:
    def swallowing(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        ledger.execute("insert into entry values (1)")
        with suppress(psycopg.Error):
            ledger.execute("select * from nowhere")

    assert books.end(swallowing) is Outcome.FAILED
    assert (books.entries(), books.state()) == (0, SubscriberState.FETCHED)


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_a_handler_that_ends_the_transaction_there_itself_is_told_so(books: Books, word: str) -> None:
    def meddling(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        ledger.execute("insert into entry values (1)")
        ledger.execute(word)

    assert books.end(meddling) is Outcome.FAILED
    assert books.state() is SubscriberState.FETCHED


def test_a_constraint_that_only_the_end_checks_is_a_failure_of_the_message(books: Books) -> None:
    books.direct.execute("create table known (number integer primary key)")
    books.direct.execute("alter table entry add foreign key (number) references known (number) initially deferred")

    assert books.end(lambda _, __, ledger: ledger.execute("insert into entry values (1)")) is Outcome.FAILED
    assert (books.entries(), books.state()) == (0, SubscriberState.FETCHED)


def test_a_further_database_that_only_reads_after_a_failover_is_no_failure_of_the_message(books: Books) -> None:
    ((name,),) = books.direct.execute("select current_database()").fetchall()
    books.direct.execute(f"alter database {name} set default_transaction_read_only = on".encode())

    assert books.end(lambda _, __, ledger: ledger.execute("insert into entry values (1)")) is Outcome.AWAY

    books.direct.execute("set default_transaction_read_only = off")
    books.direct.execute(f"alter database {name} reset default_transaction_read_only".encode())
    assert books.end(entering) is Outcome.WRITTEN, "a session keeps what was said when it began"


REFUSALS = ("P0001", "42501", "42P01", "55000", "54000")
"""What a trigger's author may choose to say: nothing of it is a word about the server, nor about the relay's tables."""


@pytest.mark.parametrize("state", REFUSALS)
def test_a_trigger_that_raises_only_at_the_end_is_a_failure_of_the_message(books: Books, state: str) -> None:
    """As the database's doing it would be tried for ever, and nobody told."""
    books.direct.execute(
        f"""create function refuse() returns trigger language plpgsql as $$
        begin raise exception 'no' using errcode = '{state}'; end $$""".encode()
    )
    books.direct.execute(
        "create constraint trigger refused after insert on entry deferrable initially deferred for each row execute function refuse()"
    )

    with capture_logs() as lines:
        assert books.end(entering) is Outcome.FAILED

    assert (books.entries(), books.state(), books.prepared.pending()) == (0, SubscriberState.FETCHED, [])
    assert [line["event"] for line in lines] == ["handler failed"], "no further database is away"


def test_a_server_that_has_no_place_for_one_more_prepared_transaction_is_no_failure_of_the_message(books: Books) -> None:
    ((places,),) = books.direct.execute("show max_prepared_transactions").fetchall()
    names = [f"filler-{number}" for number in range(int(places))]
    for name in names:
        with suppress(psycopg.OperationalError):
            books.direct.execute(f"begin; prepare transaction '{name}'".encode())

    try:
        assert books.end(entering) is Outcome.AWAY
    finally:
        for (gid,) in books.direct.execute("select gid from pg_prepared_xacts where starts_with(gid, 'filler')").fetchall():
            books.direct.execute(f"rollback prepared '{gid}'".encode())


def test_what_messages_wait_for_is_said_once_in_a_while_and_without_the_drivers_words(books: Books) -> None:
    def waiting(_: Message, __: Database, ledger: FurtherDatabase) -> None:
        ledger.execute("do $$ begin raise exception 'canary' using errcode = '53300'; end $$")

    with capture_logs() as lines:
        assert books.end(waiting) is Outcome.AWAY
        assert books.end(waiting) is Outcome.AWAY

    (line,) = lines
    assert (line["log_level"], line["resource"], line["state"]) == ("warning", "ledger", "53300")
    assert "canary" not in str(line)


def test_it_is_said_that_a_further_database_cannot_be_reached(books: Books) -> None:
    def refused() -> psycopg.Connection[Any]:
        raise Unreachable("resources.ledger: the database does not answer")

    books.connections = Connections("ledger", refused, 1)
    with capture_logs() as lines:
        assert books.end(entering) is Outcome.AWAY

    assert [line["resource"] for line in lines] == ["ledger"]


class NotOwner:
    """A role that has prepared nothing."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._name = f"r_{uuid4().hex[:8]}"

    def __enter__(self) -> str:
        self._books.direct.execute(f"create role {self._name}".encode())
        return self._name

    def __exit__(self, *_: object) -> None:
        self._books.direct.execute(f"drop role {self._name}".encode())


@pytest.mark.parametrize("is_gone", [True, False])
def test_one_that_cannot_be_committed_now_is_left_to_recovery_and_holds_up_no_other(
    books: Books, postgres: str, is_gone: bool
) -> None:
    """Be the database away, or the role without the right to: the attempt is decided, so the others follow at once."""
    archive = Connections("archive", lambda: psycopg.connect(postgres), 1)
    used: list[psycopg.Connection[Any]] = []
    finished: list[bool] = []

    class Told(FurtherDatabase):
        def finish(self) -> bool:
            finished.append(super().finish())
            return finished[-1]

    def handle(_: Message, db: Database, ledger: FurtherDatabase, further: FurtherDatabase) -> None:
        db.execute("select 1")
        used.append(ledger.execute("insert into entry values (1)").connection)
        further.execute("insert into entry values (2)")

    with NotOwner(books) as role:

        def decided() -> None:
            if is_gone:
                (attempt,) = books.prepared.pending()
                books.prepared.finish(attempt, committed=True)
            else:
                used[0].pgconn.exec_(f"set session authorization {role}".encode())

        desk = books._desk()
        commit = desk.commit

        def commit_and_spoil() -> None:
            commit()
            decided()

        desk.commit = commit_and_spoil  # type: ignore[method-assign]
        desks, both = Desks(lambda: desk, 1), (books.connections, archive)
        place = Place("q", "s", "queue:q", {"q": books.store}, {"q": schedule.lock()})
        handler = Handler("q", handle, "shop", 0, "queue", ("ledger", "archive"))
        runner = Runner(
            handler, place, desks, lambda attempt: Further([Told("shop", attempt, one) for one in both])
        )
        (ended,) = runner(Work((books.taken,)))

        assert finished == [False, True], "while recovery needs it, the attempt's outcome is not forgotten"
        assert ended.outcome is Outcome.WRITTEN
        rows = books.direct.execute("select number from entry order by number").fetchall()
        assert rows == ([(1,), (2,)] if is_gone else [(2,)])
        used[0].close()
        Recovery({"q": books.store}, {"queue:q": books.store}).prepared("ledger", books.prepared, 3)
        assert books.entries() == 2
        archive.give_back(archive.borrow())  # the only one there is: it would wait for ever
    archive.close()
    desks.close()
