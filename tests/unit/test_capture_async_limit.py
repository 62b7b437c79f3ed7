"""A process that can start no further thread: blocks of an event loop share those that there are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relay.capture.capture import Capture
from relay.message.errors import Unreachable
from relay.world import schedule
from tests.unit.async_capture_site import INSERT, capture, log, make, orders, path

__all__ = ["capture", "log", "make", "path"]


def refused(*_: object) -> None:
    raise RuntimeError("can't start new thread")


async def insert(capture: Capture, number: int) -> None:
    async with capture.async_transaction() as tx:
        await tx.execute(INSERT, (number,))


def test_without_any_thread_nothing_is_begun_and_the_next_block_goes_on(
    capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as limited:
        limited.setattr(schedule, "start_thread", refused)
        with pytest.raises(Unreachable, match="no further thread can be started"):
            asyncio.run(insert(capture, 1))
    asyncio.run(insert(capture, 2))

    assert orders(path) == [2]


def test_with_one_thread_blocks_wait_for_it(capture: Capture, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(insert(capture, 1))

    async def run() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(insert(capture, 2), insert(capture, 3))

    with monkeypatch.context() as limited:
        limited.setattr(schedule, "start_thread", refused)
        asyncio.run(run())

    assert sorted(orders(path)) == [1, 2, 3]
