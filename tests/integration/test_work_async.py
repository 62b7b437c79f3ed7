"""Async handlers in real processes: the effects, the order and the outcomes of any other handler, on one event loop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from relay.queue.states import SubscriberState
from tests.integration.work_site import Site, lent_site, report, site_on
from tests.routes import wait_for

STORES = pytest.mark.parametrize("medium", ["sqlite", "postgresql"])
POSTGRESQL = pytest.mark.parametrize("medium", ["postgresql"])
SQLITE = pytest.mark.parametrize("medium", ["sqlite"])

HEAD = """
import asyncio, os, time
from relay import Unusable, subscriber

WRITE = "insert into effect (lane, number, attempt) values ({p}, {p}, {p})"

def row(message):
    return message.lane.decode(), int(message.value), message.taken.ticket.attempt

"""
BOOK = """
@subscriber("orders", resource="shop")
async def book(message, db):
    await asyncio.sleep(0.005)
    await db.execute(WRITE, row(message))
"""


@pytest.fixture
def site(
    medium: str, request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    with site_on(medium, request, tmp_path, kafka, kafka_admin, extra="tries = 3") as made:
        yield made


@STORES
def test_each_message_takes_effect_once_in_its_lanes_order(site: Site) -> None:
    site.put(range(200), lanes=40)

    found = report(site.supervised(site.app(HEAD + BOOK), "--concurrency", "32", "--until-idle", "0.5"))

    site.check(range(200))
    assert (found["done"], found["failed"], found["overtaken"]) == (200, 0, 0)


BATCH = """
@subscriber("orders", resource="shop", batch=7)
async def book(messages, db):
    await db.executemany(WRITE, [row(one) for one in messages])
"""


@SQLITE
def test_a_batch_is_one_call(site: Site) -> None:
    site.put(range(50))

    assert site.finish(site.app(HEAD + BATCH), "--concurrency", "4") == 0

    site.check(range(50))


FAILING = """
@subscriber("orders", resource="shop")
async def book(message, db):
    number = int(message.value)
    await db.execute(WRITE, row(message))
    if number == 3 and message.failures < 2:
        raise ValueError("canary-payload")
    if number == 5:
        raise Unusable("no such customer")
    if number == 8:
        raise SystemExit(3)
    if number == 9:
        raise asyncio.CancelledError
"""


@pytest.mark.parametrize("medium", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_one_that_raises_is_tried_again_in_its_lanes_order_and_then_told_unusable(site: Site) -> None:
    site.put(range(14))

    found = report(site.supervised(site.app(HEAD + FAILING), "--concurrency", "3", "--until-idle", "0.5"))

    done = [number for _, number in site.effects()]
    assert sorted(done) == [number for number in range(14) if number not in {5, 8, 9}]
    assert done.index(3) < done.index(10), "the lane waits for its message"
    assert (found["done"], found["unusable"]) == (11, 3)
    store = site.store()
    causes = {view.id: view.subscribers[0].cause for view in map(store.view, range(1, 15)) if view is not None}
    store.close()
    assert causes["5"] == "no such customer"
    assert str(causes["8"]).startswith("SystemExit in book")
    assert str(causes["9"]).startswith("CancelledError in book")
    assert b"canary-payload" not in site.said_by_all()


CANCELLED = """
@subscriber("orders", resource="shop")
async def book(message, db):
    try:
        slow = "insert into effect (lane, number, attempt) select %s, %s, %s from pg_sleep(0.2)"
        await asyncio.wait_for(db.execute(slow, row(message)), 0.05)
    except TimeoutError:
        pass
"""


@POSTGRESQL
def test_a_statement_that_is_cancelled_ends_before_its_message_is_decided(site: Site) -> None:
    site.put(range(60), lanes=60)

    # More at once than there are connections: some statements are cancelled before they have one.
    found = report(site.supervised(site.app(HEAD + CANCELLED), "--concurrency", "40", "--until-idle", "0.5"))

    site.check(range(60))
    assert (found["done"], found["failed"]) == (60, 0)


LATE = """
LATER = []

@subscriber("orders", resource="shop")
async def book(message, db):
    for task in LATER:
        try:
            await task
        except Exception as error:
            (__import__("pathlib").Path(__file__).parent / "late").write_text(str(error))
    async def write_later():
        await asyncio.sleep(0.1)
        await db.execute(WRITE, ("late", int(message.value), 0))
    LATER[:] = [asyncio.create_task(write_later())]
    await db.execute(WRITE, row(message))
"""


@SQLITE
def test_a_statement_after_the_handlers_end_is_refused(site: Site) -> None:
    site.put(range(3), lanes=1)

    assert site.finish(site.app(HEAD + LATE), "--concurrency", "2") == 0

    site.check(range(3))
    assert "let what it starts end, or await it" in (site.folder / "late").read_text("utf-8")


NOT_AWAITED = """
async def later(message):
    raise AssertionError("nobody awaits this")

@subscriber("orders")
def book(message):
    return later(message)
"""


@SQLITE
def test_an_awaitable_that_nobody_awaits_is_no_success(site: Site) -> None:
    site.put(range(1))

    found = report(site.supervised(site.app(HEAD + NOT_AWAITED), "--until-idle", "2"))

    assert (found["done"], found["unusable"]) == (0, 1)
    store = site.store()
    view = store.view(1)
    store.close()
    assert view is not None
    assert "declare it with async def" in str(view.subscribers[0].cause)


PUBLISHING = """
@subscriber("orders")
async def book(message):
    await asyncio.sleep(0)
    message.publish("parcels", message.value)
"""


PARCELS = """tries = 3

[queues.parcels]
store = "shop"
subscribers = { ledger = {} }
"""


def test_children_show_with_their_parents_end(tmp_path: Path, kafka: str, kafka_admin: AdminClient) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with lent_site(tmp_path, kafka, kafka_admin, url, extra=PARCELS) as site:
        site.put(range(10))

        assert site.finish(site.app(HEAD + PUBLISHING), "--concurrency", "4") == 0

        assert site.states() == {SubscriberState.JOURNALLED: 10}
        assert site.states("parcels") == {SubscriberState.AVAILABLE: 10}


ENDING = """
@subscriber("orders", resource="shop")
async def book(message, db):
    await db.execute(WRITE, row(message))
    if int(message.value) == 3:
        END
"""


@pytest.mark.slow
@SQLITE
@pytest.mark.parametrize("end", ["await asyncio.sleep(600)", "time.sleep(600)", "os._exit(9)"])
def test_one_that_hangs_or_ends_its_process_is_found_and_told_unusable(site: Site, end: str) -> None:
    site.put(range(14))
    app = site.app(HEAD + ENDING.replace("END", end))

    codes = []
    while not codes or codes[-1] != 0:
        codes.append(site.finish(app, "--concurrency", "3", "--deadline", "1"))
        assert len(codes) < 20

    done = [number for _, number in site.effects()]
    assert sorted(done) == [number for number in range(14) if number != 3]


SLOW = """
@subscriber("orders")
async def wait(message):
    await asyncio.sleep(0.3)
"""


@SQLITE
def test_a_signal_lets_running_ones_end_and_gives_the_rest_back(site: Site) -> None:
    site.put(range(40), lanes=40)
    process = site.work(site.app(HEAD + SLOW), "--concurrency", "2")
    wait_for(lambda: site.states().get(SubscriberState.JOURNALLED, 0) >= 2, what="the first messages")

    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0
    assert set(site.states()) == {SubscriberState.AVAILABLE, SubscriberState.JOURNALLED}


@pytest.mark.parametrize("medium", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"])
@pytest.mark.parametrize("point", ["work.ran:7", "work.deciding:7", "work.decided:7"])
def test_a_death_at_each_step_costs_nothing_and_doubles_nothing(site: Site, point: str) -> None:
    site.put(range(30))
    app = site.app(HEAD + BOOK)

    assert site.finish(app, "--concurrency", "8", env={"RELAY_CRASH_AT": point}) == 137
    assert site.finish(app, "--concurrency", "8") == 0

    site.check(range(30))
