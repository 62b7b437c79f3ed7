"""An asynchronous block in a cancel scope of anyio, as Starlette has them around a request: it cancels again and again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from relay.capture.capture import Capture
from tests.unit.async_capture_site import (
    INSERT,
    Log,
    Pause,
    begun,
    capture,
    log,
    make,
    orders,
    path,
    place,
    until,
    writable,
)

__all__ = ["begun", "capture", "log", "make", "path"]
CANCELLED_S = 0.2
"""How long a scope that is cancelled finds the block busy: thousands of turns of the loop."""
FEW = 10


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """What is waited for with `asyncio.wait`, once each time."""
    waits: list[None] = []
    wait = asyncio.wait

    async def counted(*args: Any, **options: Any) -> Any:
        waits.append(None)
        return await wait(*args, **options)

    monkeypatch.setattr(asyncio, "wait", counted)
    return waits


async def cancelled_at(reached: threading.Event, scope: anyio.CancelScope, may_go_on: threading.Event) -> None:
    """Cancel a scope when an event is set; what keeps its block busy goes on a while later."""
    await until(reached)
    scope.cancel()
    await asyncio.sleep(CANCELLED_S)
    may_go_on.set()


async def in_scope(pause: Any, block: Callable[[], Any]) -> bool:
    """Have a scope cancelled while its block is busy; did the scope catch it?"""
    with anyio.CancelScope() as scope:
        cancelling = asyncio.create_task(cancelled_at(pause.reached, scope, pause.may_go_on))
        await block()
    await cancelling
    return scope.cancelled_caught


def test_the_loop_does_not_spin_while_a_statement_is_waited_for(
    capture: Capture, path: Path, waits: list[None]
) -> None:
    pause = Pause()

    async def block() -> None:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (1,))
            await tx.run(pause)

    assert asyncio.run(in_scope(pause, block))

    writable(path)
    assert orders(path) == []
    assert len(waits) <= FEW


def test_nor_while_it_begins(capture: Capture, path: Path, waits: list[None], begun: Pause) -> None:
    assert asyncio.run(in_scope(begun, lambda: place(capture, 1)))

    writable(path)
    assert orders(path) == []
    assert len(waits) <= FEW


def test_one_that_is_committed_meanwhile_is_known_to_be(
    capture: Capture, path: Path, log: Log, waits: list[None]
) -> None:
    tx = capture.async_transaction()
    log.may_go_on.clear()

    async def block() -> None:
        async with tx:
            await tx.execute(INSERT, (1,))
            await tx.publish("orders", 1)

    assert asyncio.run(in_scope(log, block))

    assert tx.is_committed
    assert orders(path) == [1]
    assert len(waits) <= FEW


def test_a_savepoint_in_a_scope_is_undone_and_the_block_goes_on(
    capture: Capture, path: Path, waits: list[None]
) -> None:
    pause = Pause()

    async def run() -> None:
        async with capture.async_transaction() as tx:
            await tx.execute(INSERT, (1,))

            async def inner() -> None:
                async with tx.savepoint():
                    await tx.execute(INSERT, (2,))
                    await tx.run(pause)

            assert await in_scope(pause, inner)
            await tx.execute(INSERT, (3,))

    asyncio.run(run())

    assert orders(path) == [1, 3]
    assert len(waits) <= FEW
