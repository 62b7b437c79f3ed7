"""Forks of a process that captures, and its end: its block and the file are whole, and nothing waits for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

BEFORE: Final = """
import multiprocessing, os, sqlite3, sys, gc
from relay.capture.capture import Capture
from relay.message.errors import CaptureError, ConfigError
from relay.resources import open_resource

def opened(path):
    return Capture(kafka={"bootstrap.servers": "127.0.0.1:1"}, resource=open_resource("shop", f"sqlite:///{path}"), source="/s")

def prepared(path):
    open_resource("shop", f"sqlite:///{path}").create_tables()
    with sqlite3.connect(path) as connection:
        connection.execute("create table orders (id integer primary key, what blob)")
    connection.close()
    return opened(path)

def orders(path):
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    return connection.execute("select count(*) from orders").fetchone()[0]

def refused(use):
    try:
        use()
    except (CaptureError, ConfigError) as error:
        return str(error)
    return "not refused"

path = sys.argv[1]
"""


def run(script: str, path: Path) -> str:
    words = [sys.executable, "-W", "ignore", "-c", BEFORE + script, str(path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.parametrize("end", ["sys.exit(0)", "gc.collect(); raise SystemExit", "del capture, tx; gc.collect(); sys.exit(0)"])
def test_a_fork_inside_a_block_may_end_as_it_likes(tmp_path: Path, end: str) -> None:
    script = f"""
capture = prepared(path)
with capture.transaction() as tx:
    tx.execute("select 1")
with capture.transaction() as tx:
    for number in range(40):
        tx.execute("insert into orders (what) values (randomblob(200000))")
    fork = os.fork()
    if fork == 0:
        {end}
    assert os.waitpid(fork, 0)[1] == 0
    tx.execute("insert into orders (what) values ('tea')")
    assert tx.execute("select count(*), sum(length(what)) from orders").fetchall() == [(41, 8_000_003)]
with capture.transaction() as tx:
    tx.execute("insert into orders (what) values ('milk')")
print(orders(path))
capture.close()
"""
    assert run(script, tmp_path / "shop.db") == "42\n"


def test_a_forked_worker_that_opens_the_file_beside_its_parent_is_refused(tmp_path: Path) -> None:
    script = """
capture = prepared(path)
with capture.transaction() as tx:
    tx.execute("insert into orders (what) values ('tea')")

def work():
    print(refused(lambda: opened(path)))
    print(refused(lambda: capture.transaction().__enter__()), flush=True)

worker = multiprocessing.get_context("fork").Process(target=work)
worker.start(); worker.join()
capture.close()
"""
    anew, carried = run(script, tmp_path / "shop.db").splitlines()
    assert "open it after the fork only (close every Capture before), or start processes by spawn" in anew
    assert "open one in each process, after the fork" in carried


def test_one_that_is_forked_when_the_file_is_closed_opens_it(tmp_path: Path) -> None:
    script = """
capture = prepared(path)
with capture.transaction() as tx:
    tx.execute("insert into orders (what) values ('tea')")
capture.close()

def work():
    with opened(path) as capture, capture.transaction() as tx:
        tx.execute("insert into orders (what) values ('milk')")

worker = multiprocessing.get_context("fork").Process(target=work)
worker.start(); worker.join()
assert worker.exitcode == 0
print(orders(path))
"""
    assert run(script, tmp_path / "shop.db") == "2\n"


def test_one_that_is_closed_as_the_interpreter_ends_does_not_wait_for_threads_that_have_stopped(tmp_path: Path) -> None:
    script = """
class Service:
    def __init__(self):
        self.capture = prepared(path)

    def __del__(self):
        self.capture.close()

service = Service()
with service.capture.transaction() as tx:
    tx.execute("insert into orders (what) values ('tea')")
print(orders(path))
"""
    assert run(script, tmp_path / "shop.db") == "1\n"


def test_a_fork_inside_an_asynchronous_block_leaves_it_to_its_parent(tmp_path: Path) -> None:
    script = """
import asyncio
capture = prepared(path)

async def refuses(step):
    try:
        await step
    except CaptureError as error:
        return "opened by process" in str(error)
    return False

async def place():
    async with capture.async_transaction() as tx:
        await tx.execute("insert into orders (what) values ('tea')")
        if (fork := os.fork()) == 0:  # it must not use the loop, which it shares
            steps = [tx.execute("select 1"), tx.__aexit__(None, None, None), capture.async_transaction().__aenter__()]
            refused = [await refuses(step) for step in steps]
            await tx.__aexit__(ValueError, ValueError(), None)
            del tx
            gc.collect()
            os._exit(not all(refused))
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
        await tx.execute("insert into orders (what) values ('milk')")

asyncio.run(place())
print(orders(path))
capture.close()
"""
    assert run(script, tmp_path / "shop.db") == "2\n"


def test_one_that_was_closed_before_the_fork_may_be_forgotten_in_it(tmp_path: Path) -> None:
    script = """
import signal
capture = prepared(path)
capture.close()
fork = os.fork()
if fork == 0:
    signal.alarm(20)
    # A client that was left would join its threads, whose places in memory threads of the new ones have taken.
    capture = opened(path)
    gc.collect()
    with capture.transaction() as tx:
        tx.execute("insert into orders (what) values ('tea')")
    os._exit(0)
assert os.waitpid(fork, 0)[1] == 0
print(orders(path))
"""
    assert run(script, tmp_path / "shop.db") == "1\n"
