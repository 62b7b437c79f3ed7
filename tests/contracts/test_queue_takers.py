"""Several takers at once, each with a store object of its own: nothing twice, nothing lost, order kept."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay.message.errors import Retriable
from relay.queue.port import QueueStore
from relay.queue.settings import QueueSettings
from tests.contracts.queue_media import MEDIA, NOW, Medium, enter, medium_of, message, settings

SHARED = [name for name in MEDIA if name not in ("book", "files")]
"""Stores that several processes may open; files refuse the second (`test_queue_files`)."""
LANES = 7


@pytest.fixture(params=SHARED)
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Medium]:
    medium = medium_of(request.param, tmp_path, request)
    yield medium
    medium.close()


def again(ask: Callable[[], Any]) -> Any:
    """Ask until the store answers: writers that meet may be told to come again."""
    while True:
        try:
            return ask()
        except Retriable:
            continue


def work(store: QueueStore, subscriber: str, holder: bytes, total: int, done: list[tuple[str, int]]) -> None:
    """Take and finish until everything is done, and note each message while it is held."""
    while len(done) < total:
        taken = again(partial(store.take, subscriber, holder, 5, NOW))
        done += [((one.lane or b"").decode(), int(one.id)) for one in taken]
        again(partial(store.finish, subscriber, [one.ticket for one in taken], NOW))


@pytest.mark.parametrize("pool", [True, False], ids=["members of a pool", "workers of one subscriber"])
def test_takers_at_once_share_the_messages_and_keep_each_lane_in_order(medium: Medium, pool: bool) -> None:
    names = ("ann", "bob", "cid")
    queue: QueueSettings = settings(names) if pool else settings("ann")
    first = medium.open(queue)
    first.put([message(str(n), lane=b"%d" % (n % LANES)) for n in range(100)], NOW)
    takers = [(name if pool else "ann", name.encode()) for name in names]
    stores = [medium.open(queue) for _ in takers]
    done: list[tuple[str, int]] = []
    failures: list[BaseException] = []

    def run(store: QueueStore, subscriber: str, holder: bytes) -> None:
        try:
            enter(store, subscriber, holder)
            work(store, subscriber, holder, 100, done)
        except BaseException as failure:  # noqa: BLE001 - the test's own thread raises it
            failures.append(failure)
            done.extend([("failed", -1)] * 100)

    threads = [
        threading.Thread(target=run, args=(store, *taker))
        for store, taker in zip(stores, takers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)

    assert failures == []
    assert sorted(number for _, number in done) == list(range(100))
    by_lane = defaultdict(list)
    for lane, number in done:
        by_lane[lane].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_lane.values())
    assert first.waiting() == 0
