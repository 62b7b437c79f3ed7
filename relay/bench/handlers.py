"""Handlers that only wait, in order per key: against the ceiling of the waits themselves, and a bare pool of threads.

64 handlers wait 5 ms for each message, in threads or on an event loop; states are written to SQLite in batches. The ceiling is
min(concurrency, keys) / wait; with keys of unequal weight it is the heaviest key's messages one after the other.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, Final

from relay.queue.message import Audience, Group, NewMessage
from relay.queue.port import Holder, QueueStore
from relay.queue.settings import QueueSettings
from relay.queue.stores import open_store
from relay.work.backoff import Backoff
from relay.work.coroutines import AwaitedRunner
from relay.work.mark import Mark
from relay.work.message import Message
from relay.work.place import Place
from relay.work.process import SWITCH_INTERVAL_S
from relay.work.running import Runner
from relay.work.subscriber import Handler
from relay.work.upkeep import Upkeep
from relay.work.worker import Limits, Worker
from relay.world import clock, schedule

CONCURRENCY: Final = 64
KEYS: Final = 1_000
WAIT_S: Final = 0.005
VALUE: Final = b"x" * 256
ZIPF_SHARE: Final = 4
"""The run with unequal keys has a quarter of the messages: its heaviest key alone takes an eighth of them in a row."""
WARM: Final = 0.2
END: Final = 0.9
_HOLDER: Final = b"bench-handlers--"
_GOLDEN: Final = 0.6180339887498949

Measured = tuple[float, float]
"""Messages per second of the warm part, and of the whole run."""


def run(messages: int = 50_000, rounds: int = 2) -> dict[str, Any]:
    """Measure in turns; return the row of `relay bench`."""
    even = [number % KEYS for number in range(messages)]
    unequal = zipf(messages // ZIPF_SHARE)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    ours, bare, hard, loop = [], [], [], []
    try:
        for _ in range(rounds):
            bare.append(_bare(messages)[0])
            ours.append(_handlers(even)[0])
            hard.append(_handlers(unequal)[1])
            loop.append(_handlers(even, is_async=True)[0])
    finally:
        sys.setswitchinterval(before)
    ceiling = min(CONCURRENCY, KEYS) / WAIT_S
    heaviest = max(Counter(unequal).values())
    hard_ceiling = len(unequal) / max(len(unequal) / ceiling, heaviest * WAIT_S)
    return {
        "name": "handlers",
        "value": round(median(ours)),
        "unit": "messages/s",
        "reference": round(ceiling),
        "ratio": round(median(ours) / ceiling, 3),
        "pool_reference": round(median(bare)),
        "pool_ratio": round(median(ours) / median(bare), 3),
        "async_value": round(median(loop)),
        "async_ratio": round(median(loop) / ceiling, 3),
        "zipf_value": round(median(hard)),
        "zipf_reference": round(hard_ceiling),
        "zipf_ratio": round(median(hard) / hard_ceiling, 3),
        "rounds": [
            {"handlers": round(one), "pool": round(two), "zipf": round(three), "async": round(four)}
            for one, two, three, four in zip(ours, bare, hard, loop, strict=True)
        ],
    }


def zipf(messages: int) -> list[int]:
    """Return keys whose weights fall as 1, 1/2, 1/3 and so on, well mixed and the same in every run."""
    weights = list(accumulate(1 / (key + 1) for key in range(KEYS)))
    keys, place = [], 0.0
    for _ in range(messages):
        place = (place + _GOLDEN) % 1.0
        keys.append(_bisect(weights, place * weights[-1]))
    return keys


def _bisect(weights: Sequence[float], value: float) -> int:
    low, high = 0, len(weights) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if weights[middle] > value else (middle + 1, high)
    return low


def _bare(messages: int) -> Measured:
    """Measure the same waits in a pool of threads that does nothing else."""
    waiting = schedule.fifo()
    times: list[float] = []
    for number in range(messages):
        waiting.put(number)

    def loop() -> None:
        while True:
            try:
                waiting.get_nowait()
            except schedule.Empty:
                return
            _wait(times)

    threads = [schedule.start_thread(f"bare-{number}", loop) for number in range(CONCURRENCY)]
    for thread in threads:
        thread.join()
    return _measured(times)


def _handlers(keys: Sequence[int], *, is_async: bool = False) -> Measured:
    times: list[float] = []

    def wait(_message: Message) -> None:
        _wait(times)

    async def wait_on_the_loop(_message: Message) -> None:
        await asyncio.sleep(WAIT_S)
        times.append(clock.monotonic())

    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        store = open_store(_settings(), f"sqlite:///{folder}/queue.db", state=Path(folder))
        for start in range(0, len(keys), 1000):
            batch = enumerate(keys[start : start + 1000], start)
            store.put([NewMessage("p", str(n), VALUE, lane=b"%d" % key) for n, key in batch], clock.wall_ms())
        worker = _worker(store, Path(folder), wait_on_the_loop if is_async else wait)
        worker.run(until_idle_s=0.2)
        store.close()
    return _measured(times)


def _worker(store: QueueStore, folder: Path, function: Callable[[Message], Any]) -> Worker:
    handler = Handler("bench", function, None, 0, "queue")
    holder = Holder(_HOLDER, "handlers", 0, None)
    lock, backoff = schedule.lock(), Backoff()
    mark = Mark(folder / "work", holder.id)
    store.enter(holder)
    place = Place("bench", "handlers", "queue:bench", {"bench": store}, {"bench": lock})

    def deciding(_lent: ExitStack) -> dict[str, QueueStore]:
        return {"queue:bench": store}

    upkeep = Upkeep("bench", {"bench": store}, deciding, holder, folder / "work", 60.0, backoff)
    limits = Limits(CONCURRENCY, backoff=backoff)
    runner = Runner(handler, place, None)
    run = AwaitedRunner(handler, runner, CONCURRENCY) if handler.is_async else runner
    return Worker(store, "handlers", holder.id, run, lock, limits, upkeep, mark)


def _settings() -> QueueSettings:
    return QueueSettings("bench", Audience((Group("handlers", ("handlers",)),)), order="key")


def _wait(times: list[float]) -> None:
    clock.sleep(WAIT_S)
    times.append(clock.monotonic())


def _measured(times: list[float]) -> Measured:
    times.sort()
    start, end = round(WARM * len(times)), round(END * len(times))
    warm = (end - start) / (times[end - 1] - times[start])
    return warm, len(times) / (times[-1] - times[0] + WAIT_S)
