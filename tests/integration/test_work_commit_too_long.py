"""A COMMIT that is ended, or cancelled, each time since a deferred trigger is slow: a failure of its message, if it did not commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from relay.queue.message import NewMessage
from relay.queue.port import Filter, QueueStore
from relay.queue.states import SubscriberState
from relay.queue.stores import bind_store
from relay.resources import open_resource
from relay.work.desk_postgresql import PostgresqlDesk
from relay.work.desks import Database, Desks
from relay.work.dispatch import Dispatch, Ended, Outcome, Work
from relay.work.message import Message
from relay.work.place import Place
from relay.work.running import Runner
from relay.work.subscriber import Handler
from relay.world import schedule
from tests.integration.handler_site import EFFECT, HOLDER, SETTINGS, OnceCancelled, Table
from tests.integration.work_site import Site, site_on

SLOW = """create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(5); return null; end $$;
create constraint trigger slow after insert on effect deferrable initially deferred for each row {when} execute function slow()"""
CANCELLED = """create function slow() returns trigger language plpgsql as $$ begin
    raise exception 'canceling statement due to statement timeout' using errcode = '57014'; end $$;
create constraint trigger slow after insert on effect deferrable initially deferred for each row {when} execute function slow()"""
"""What a trigger meets that waits for another server, whose statement is cancelled there."""
LIMITED = "set local transaction_timeout = '300ms'"
TRIGGERS = pytest.mark.parametrize("trigger", [SLOW, CANCELLED])


class Shop:
    """A queue in the handler's database, which decides, or decides for it as if it lay elsewhere."""

    def __init__(self, url: str) -> None:
        self.table = Table(url)
        self.is_opening_cancelled = False
        self.is_commit_cancelled = False
        open_resource("shop", url).create_tables()

    def end(self, handle: Any, *, is_near: bool = True, work: Work | None = None) -> list[Ended]:
        """Run the handler once."""

        def bind(connection: Any) -> dict[str, QueueStore]:
            return {"q": bind_store(SETTINGS, self.table.url, connection)} if is_near else {}

        def opened() -> PostgresqlDesk:
            connection = OnceCancelled.connect(self.table.url, autocommit=True)
            connection.is_due = self.is_opening_cancelled
            desk = PostgresqlDesk("shop", connection, bind)
            connection.is_due = self.is_commit_cancelled
            return desk

        desks = Desks(opened, 1)
        deciding = "queue:q" if is_near else "resource:shop"
        place = Place("q", "s", deciding, {"q": self.table.store}, {"q": schedule.lock()})
        work = Work((self.table.taken,)) if work is None else work
        batch = len(work.messages) if len(work.messages) > 1 else 0
        ended = Runner(Handler("q", handle, "shop", batch, "queue"), place, desks)(work)
        desks.close()
        return list(ended)

    def write(self, ended: list[Ended], tries: int = 5) -> None:
        """Write what came of messages, as a worker does."""
        dispatch = Dispatch(1, tries, batch=len(ended))
        dispatch.add([one.taken for one in ended])
        dispatch.next()
        dispatch.ended(ended)
        writes, store = dispatch.writes(), self.table.store
        store.finish("s", writes.done, 2)
        store.refuse("s", writes.unusable, 2)
        store.free("s", writes.back, 2)
        for one in writes.failed:
            store.free("s", [one.ticket], 2, again_at=2, failed=one.counted)

    def failures(self) -> int:
        view = self.table.store.view(self.table.taken.ticket.handle)
        assert view is not None
        return view.subscribers[0].failures


@pytest.fixture
def shop(postgres: str) -> Iterator[Shop]:
    made = Shop(postgres)
    yield made
    made.table.close()


@TRIGGERS
@pytest.mark.parametrize("is_near", [True, False])
def test_it_costs_its_message_a_try(shop: Shop, trigger: str, is_near: bool) -> None:
    if trigger == SLOW and not shop.table.run("select 1 from pg_settings where name = 'transaction_timeout'"):
        pytest.skip("this server does not limit the time of transactions")
    shop.table.run(trigger.format(when=""))

    def handle(_: Message, db: Database) -> None:
        if trigger == SLOW:
            db.execute(LIMITED)
        db.execute(EFFECT)

    (ended,) = shop.end(handle, is_near=is_near)

    assert (ended.outcome, shop.table.effects()) == (Outcome.FAILED, 0)
    assert "taken too long" in ended.cause
    shop.write([ended])
    assert (shop.table.state(), shop.failures()) == (None, 1)


@pytest.mark.parametrize("tries", [1, 5])
@pytest.mark.parametrize("is_near", [True, False])
def test_one_that_had_committed_by_then_costs_nothing_and_is_done_once(
    shop: Shop, tries: int, is_near: bool
) -> None:
    """A server that is told to cancel while it flushes has committed: no failure may be counted, and no effect follow."""
    shop.is_commit_cancelled = True

    (ended,) = shop.end(lambda _, db: db.execute(EFFECT), is_near=is_near)
    shop.write([ended], tries)

    assert (shop.table.effects(), shop.table.state(), shop.failures()) == (1, SubscriberState.DONE, 0)


def test_a_connection_whose_queues_could_not_be_opened_for_a_lost_answer_costs_no_try(shop: Shop) -> None:
    """Its queues are written down when it is opened, and nothing of the message is in doubt yet."""
    shop.is_opening_cancelled = True

    (ended,) = shop.end(lambda _, db: db.execute(EFFECT))

    assert (ended.outcome, shop.table.effects()) == (Outcome.AWAY, 0)
    shop.is_opening_cancelled = False
    (ended,) = shop.end(lambda _, db: db.execute(EFFECT))
    assert (ended.outcome, shop.table.effects()) == (Outcome.WRITTEN, 1)


@pytest.mark.parametrize("is_near", [True, False])
def test_of_a_batch_each_message_runs_by_itself_as_another_attempt(shop: Shop, is_near: bool) -> None:
    shop.table.run(CANCELLED.format(when=""))
    shop.table.store.put([NewMessage("p", "2", b"2")], 1)
    (other,) = shop.table.store.take("s", HOLDER, 1, 1)

    def handle(_: list[Message], db: Database) -> None:
        db.execute(EFFECT)

    ended = shop.end(handle, is_near=is_near, work=Work((shop.table.taken, other)))

    assert [one.outcome for one in ended] == [Outcome.APART, Outcome.APART], "nobody knows whose it is"


APP = """
from relay import subscriber

@subscriber("orders", resource="shop")
def book(message, db):
    db.execute("insert into effect (lane, number, attempt) values (%s, %s, %s)",
               (message.lane.decode(), int(message.value), message.taken.ticket.attempt))
"""


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    with site_on("postgresql", request, tmp_path, kafka, kafka_admin, extra="tries = 2") as made:
        yield made


def test_it_dies_after_its_tries_and_its_lane_goes_on(site: Site) -> None:
    site.run_sql(CANCELLED.format(when="when (new.number = 0)"))
    site.put(range(2), lanes=1)

    assert site.finish(site.app(APP)) == 0

    assert site.effects() == [("0", 1)]
    store = site.store()
    (dead,) = [one for one in store.find(Filter(), limit=9) if one.subscribers[0].cause is not None]
    store.close()
    assert (dead.id, dead.subscribers[0].attempt) == ("0", 2)
