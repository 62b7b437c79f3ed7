"""Handlers in real processes over SQLite and PostgreSQL: each message's effect once, whatever ends the process."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from relay.queue.port import Holder
from relay.queue.states import SubscriberState
from tests.integration.work_site import Site, lent_site, report, site_on
from tests.routes import wait_for

STORES = pytest.mark.parametrize("medium", ["sqlite", "postgresql"])


@pytest.fixture
def site(
    medium: str, request: pytest.FixtureRequest, tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> Iterator[Site]:
    with site_on(medium, request, tmp_path, kafka, kafka_admin, extra="tries = 3") as made:
        yield made


@STORES
def test_each_message_takes_effect_once_in_its_lanes_order_and_is_journalled(site: Site) -> None:
    site.put(range(60))

    found = report(site.supervised(site.app(), "--concurrency", "4", "--until-idle", "0.5"))

    site.check(range(60))
    assert (found["done"], found["failed"], found["overtaken"]) == (60, 0, 0)


FAILING = """
from relay import Unusable, subscriber

@subscriber("orders", resource="shop")
def book(message, db):
    number = int(message.value)
    db.execute("insert into effect (lane, number, attempt) values ({p}, {p}, {p})",
               (message.lane.decode(), number, message.taken.ticket.attempt))
    if number == 3 and message.failures < 2:
        raise ValueError("canary-payload")
    if number == 5:
        raise Unusable("no such customer")
    if number == 8:
        raise SystemExit(3)
"""


@pytest.mark.parametrize("medium", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_handler_that_raises_is_tried_again_in_its_lanes_order_and_then_told_unusable(site: Site) -> None:
    site.put(range(14))

    found = report(site.supervised(site.app(FAILING), "--concurrency", "3", "--until-idle", "0.5"))

    done = [number for _, number in site.effects()]
    assert sorted(done) == [number for number in range(14) if number not in {5, 8}]
    assert done.index(3) < done.index(10), "the lane waits for its message"
    assert (found["done"], found["unusable"]) == (12, 2)
    store = site.store()
    causes = {
        view.id: view.subscribers[0].cause for view in map(store.view, range(1, 15)) if view is not None
    }
    store.close()
    assert causes["5"] == "no such customer"
    assert causes["8"] is not None
    assert causes["8"].startswith("SystemExit in book")
    assert b"canary-payload" not in site.said_by_all()


ENDING = """
import os, time
from relay import subscriber

@subscriber("orders", resource="shop")
def book(message, db):
    number = int(message.value)
    db.execute("insert into effect (lane, number, attempt) values ({p}, {p}, {p})",
               (message.lane.decode(), number, message.taken.ticket.attempt))
    if number == 3:
        END
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("medium", "end"),
    [
        ("sqlite", "os._exit(9)"),
        ("postgresql", "os._exit(9)"),
        ("postgresql", "time.sleep(600)"),
        ("sqlite", "time.sleep(600)"),
    ],
)
def test_a_message_that_ends_or_hangs_its_process_is_found_and_told_unusable(site: Site, end: str) -> None:
    site.put(range(14))
    app = site.app(ENDING.replace("END", end))

    codes = []
    while not codes or codes[-1] != 0:
        codes.append(site.finish(app, "--concurrency", "3", "--deadline", "1"))
        assert len(codes) < 20

    assert set(codes[:-1]) == ({9} if "exit" in end else {1})
    done = [number for _, number in site.effects()]
    assert sorted(done) == [number for number in range(14) if number != 3]
    store = site.store()
    view = store.view(4)
    store.close()
    assert view is not None
    assert view.subscribers[0].cause is not None
    assert "process" in view.subscribers[0].cause


SLOW = """
import time
from relay import subscriber

@subscriber("orders")
def wait(message):
    time.sleep(0.3)
"""


@pytest.mark.parametrize("medium", ["sqlite"])
def test_a_signal_lets_running_handlers_end_and_gives_the_rest_back(site: Site) -> None:
    site.put(range(40), lanes=40)
    process = site.work(site.app(SLOW), "--concurrency", "2")
    wait_for(lambda: site.states().get(SubscriberState.JOURNALLED, 0) >= 2, what="the first messages")

    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0
    states = site.states()
    assert set(states) == {SubscriberState.AVAILABLE, SubscriberState.JOURNALLED}
    store = site.store()
    assert store.holders() == []
    store.close()


@pytest.mark.parametrize("medium", ["postgresql"])
def test_a_worker_that_vanishes_without_a_trace_is_given_up_after_its_lease(
    site: Site, tmp_path: Path
) -> None:
    site.put(range(5))
    store = site.store()
    stranger = Holder(b"another-host-----", "ledger", 0, None)
    store.enter(stranger)
    assert len(store.take("ledger", stranger.id, 3, 1)) == 3
    store.close()
    site.path.write_text(site.path.read_text("utf-8").replace('lease = "60s"', 'lease = "2s"'), "utf-8")

    assert site.finish(site.app(), "--concurrency", "2") == 0
    site.check(range(5))


FREEZING = """
import time
from pathlib import Path
from relay import subscriber

@subscriber("orders", resource="shop")
def book(message, db):
    folder = Path(__file__).parent
    if message.taken.ticket.attempt == 1:
        (folder / "entered").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
    db.execute("insert into effect (lane, number, attempt) values ({p}, {p}, {p})",
               (message.lane.decode(), int(message.value), message.taken.ticket.attempt))
"""


@pytest.mark.parametrize("medium", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"])
def test_a_worker_frozen_past_its_lease_comes_back_without_an_effect_of_its_own(site: Site) -> None:
    site.path.write_text(site.path.read_text("utf-8").replace('lease = "60s"', 'lease = "1s"'), "utf-8")
    site.put(range(4), lanes=2)
    app = site.app(FREEZING)
    frozen = site.work(app, "--concurrency", "2")
    wait_for((site.folder / "entered").exists, what="a handler that runs")
    frozen.send_signal(signal.SIGSTOP)

    assert site.finish(app, "--concurrency", "2") == 0
    (site.folder / "go").touch()
    frozen.send_signal(signal.SIGCONT)

    assert frozen.wait(30) != 0, "it was given up and must end"
    site.check(range(4))


def test_a_queue_in_flat_files_is_handled_with_its_effects_in_a_database(
    tmp_path: Path, kafka: str, kafka_admin: AdminClient
) -> None:
    store = f"files://{tmp_path}/orders"
    with lent_site(tmp_path, kafka, kafka_admin, f"sqlite:///{tmp_path}/shop.db", store=store) as site:
        site.put(range(20))
        app = site.app()

        assert site.finish(app, env={"RELAY_CRASH_AT": "work.decided:5"}) == 137
        assert site.finish(app, "--concurrency", "4") == 0
        site.check(range(20))
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        ((kept,),) = shop.execute("select count(*) from relay_attempt where committed").fetchall()
    shop.close()
    assert kept <= 5, "only what the killed one had decided: a worker forgets the outcomes of its own attempts"


LEAVING = """
import atexit, os, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from relay import subscriber

FOLDER = Path(__file__).parent
pool = None

def double(number):
    return os.getpid(), 2 * number

@subscriber("orders")
def work(message):
    global pool
    pool = pool or ProcessPoolExecutor(1)
    print("printed", *pool.submit(double, int(message.value)).result())

atexit.register(lambda: (FOLDER / "left").write_text("left"))
"""


@pytest.mark.parametrize("medium", ["sqlite"])
def test_what_an_application_prints_and_has_for_its_end_is_not_lost_and_its_pools_end(site: Site) -> None:
    site.put([7])

    assert site.finish(site.app(LEAVING), env={"PYTHONUNBUFFERED": ""}) == 0

    assert (site.folder / "left").read_text() == "left"
    said = site.said_by_all().decode()
    assert "printed" in said
    pid, doubled = next(line for line in said.splitlines() if line.startswith("printed")).split()[1:]
    assert doubled == "14"
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the pool's process")


STAYING = """
import threading, time
from relay import subscriber

@subscriber("orders")
def work(message):
    threading.Thread(target=time.sleep, args=(600,)).start()
"""


@pytest.mark.parametrize("medium", ["sqlite"])
def test_a_thread_that_an_application_leaves_behind_holds_its_end_up_for_seconds_only(site: Site) -> None:
    site.put([7])

    assert site.finish(site.app(STAYING)) == 0


PRINTING = """
from relay import subscriber
print("loaded")

@subscriber("orders")
def work(message):
    print("worked")
"""


@pytest.mark.parametrize("medium", ["sqlite"])
def test_what_an_application_prints_does_not_come_before_the_report(site: Site) -> None:
    site.put([7])

    assert report(site.supervised(site.app(PRINTING), "--until-idle", "0.5"))["done"] == 1


FORKING = """
import multiprocessing, time
from relay import subscriber

@subscriber("orders")
def work(message):
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    process.start()
    process.terminate()
    process.join(20)
    assert process.exitcode == -15, process.exitcode
"""


@pytest.mark.parametrize("medium", ["sqlite"])
def test_a_process_that_a_handler_forks_ends_when_it_is_told_to(site: Site) -> None:
    site.put([7])

    assert site.finish(site.app(FORKING), "--deadline", "10") == 0
    assert site.states() == {SubscriberState.JOURNALLED: 1}
    store = site.store()
    view = store.view(1)
    store.close()
    assert view is not None
    assert view.subscribers[0].failures == 0
