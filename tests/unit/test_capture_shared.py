"""A block that several threads use at once: each call has it to itself, and none takes effect beyond its end."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from relay.capture.block import CaptureBlock
from relay.capture.capture import Capture
from relay.message.errors import CaptureError
from tests.unit.async_capture_site import INSERT, WAIT_S, Log, capture, log, make, orders, path

__all__ = ["capture", "log", "make", "path"]

THREADS = 4


def test_threads_that_publish_at_once_give_each_message_an_id_of_its_own(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    admit, together = capture._publisher.admit, threading.Barrier(2)

    def slowly(*given: object) -> int:
        with suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # another thread comes as far, unless the block is one thread's at a time
        return admit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(capture._publisher, "admit", slowly)
    with ThreadPoolExecutor(2) as pool, capture.transaction() as tx:
        ids = list(pool.map(lambda number: tx.publish("orders", number), range(4)))

    assert len(set(ids)) == 4


def test_what_a_thread_does_after_the_block_has_failed_is_refused(capture: Capture, path: Path, log: Log) -> None:
    refused: list[CaptureError] = []

    def save(tx: CaptureBlock, over: threading.Event) -> None:
        number = threading.get_ident()
        with suppress(CaptureError):
            while True:
                tx.execute("insert into orders values (null)")
                tx.publish("orders", number)
                over.wait(0.001)
        with pytest.raises(CaptureError) as caught:
            tx.publish("orders", number)
        refused.append(caught.value)

    for _ in range(10):
        over = threading.Event()
        with ThreadPoolExecutor(THREADS) as pool, suppress(ValueError), capture.transaction() as tx:
            for _ in range(THREADS):
                pool.submit(save, tx, over)
            over.wait(0.01)
            raise ValueError("no stock")

    assert orders(path) == []
    assert log.keys == []
    assert len(refused) == 10 * THREADS


def test_the_end_of_a_block_waits_for_the_statement_of_another_thread(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with capture.transaction() as tx:
            execute = tx._session.execute

            def slow(*given: object) -> object:
                begun.set()
                assert may_go_on.wait(WAIT_S)
                return execute(*given)

            monkeypatch.setattr(tx._session, "execute", slow)
            statement = pool.submit(tx.execute, INSERT, (1,))
            assert begun.wait(WAIT_S)
            threading.Timer(0.1, may_go_on.set).start()
        assert orders(path) == [1]
        statement.result(WAIT_S)


def test_a_block_that_goes_on_after_a_refused_message_commits_nothing(capture: Capture, path: Path) -> None:
    with pytest.raises(CaptureError, match="or a message was refused, and the block went on"), capture.transaction() as tx:  # noqa: PT012
        tx.execute(INSERT, (1,))
        with suppress(CaptureError):
            tx.publish("orders", float("nan"))

    assert orders(path) == []


def refused(tx: CaptureBlock) -> None:
    tx.publish("orders", float("nan"))


def broken(tx: CaptureBlock) -> None:
    tx.execute(INSERT, (1,))


@pytest.mark.parametrize("fails", [refused, broken])
def test_of_a_savepoint_that_goes_on_after_a_failure_nothing_stays_either(
    capture: Capture, path: Path, log: Log, fails: Callable[[CaptureBlock], None]
) -> None:
    with capture.transaction() as tx:
        tx.execute(INSERT, (1,))
        with pytest.raises(CaptureError, match="let the error leave it"), tx.savepoint():  # noqa: PT012
            tx.execute(INSERT, (2,))
            tx.publish("orders", 2, key="2")
            for _ in range(2):
                with suppress(CaptureError, sqlite3.IntegrityError):
                    fails(tx)
                with suppress(ValueError), tx.savepoint():
                    raise ValueError
        with tx.savepoint():
            tx.execute(INSERT, (3,))
            with suppress(CaptureError, sqlite3.IntegrityError), tx.savepoint():
                tx.publish("orders", 4, key="4")
                fails(tx)
            tx.publish("orders", 3, key="3")

    assert orders(path) == [1, 3]
    assert log.keys == [b"3"]
