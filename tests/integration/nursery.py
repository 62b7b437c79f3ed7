"""Many short lives: forks worker processes from one that has loaded everything, and kills them at random moments.

Usage: ``python -m tests.integration.nursery CONFIG APP UUID KILLS SEED ALIVE CALLS``; so many workers live at a time. A life is
measured in work, whatever the machine is busy with: up to so many calls of the handler, but one in ten dies at any moment,
perhaps before its first. It ends when the kills are done and the queue is empty, and prints how many it killed and how many
ended wrongly.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relay.config.loading import load
from relay.run import logging
from relay.run.following import DesiredFollower
from relay.work.assembly import Assembled, Job
from relay.work.loading import load_handler
from relay.work.worker import Limits
from tests.recorded_queue import RecordedQueue

CONCURRENCY = 8
UNBORN = 0.1
LAST_S = (0.0, 0.05)
IDLE_S = 1.0


@dataclass
class Child:
    """A worker process; it writes a byte into ``calls`` for each call of its handler, and dies after ``left`` more."""

    pid: int
    calls: int
    left: int

    def ended(self) -> int:
        """Return the process's status when it has ended."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.calls)
        return status


def first_due(alive: list[Child]) -> tuple[int, bool]:
    """Wait until one has had its calls, or has ended by itself; return its place, and whether any was called meanwhile.

    Whoever works is due: one that waits for a lane that another one has must not keep that one from being killed.
    """
    was_called = False
    while True:
        for place, child in enumerate(alive):
            if child.left <= 0:
                return place, was_called
        readable, _, _ = select.select([child.calls for child in alive], [], [])
        for child in alive:
            if child.calls in readable:
                read = os.read(child.calls, child.left)
                child.left = child.left - len(read) if read else 0
                was_called = was_called or bool(read)


def live(config: Path, app: str, uuid: str, say: int) -> None:
    sys.setswitchinterval(0.0005)
    logging.setup()
    loaded = load(config)
    handler = load_handler(app, "orders")
    os.set_blocking(say, False)

    def tell(*given: Any) -> Any:
        with suppress(BlockingIOError):
            os.write(say, b".")
        return handler(*given)

    async def tell_and_await(*given: Any) -> None:
        await tell(*given)

    job = Job(replace(handler, function=tell_and_await if handler.is_async else tell), "orders", "ledger")
    assembled = Assembled(loaded, job, Limits(CONCURRENCY), DesiredFollower(RecordedQueue("orders", uuid)))
    assembled.worker.run(IDLE_S)
    os._exit(0)


def born(config: Path, app: str, uuid: str, left: int) -> Child:
    calls, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(calls)
        try:
            live(config, app, uuid, say)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent counts it
            print(f"a worker failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os.close(say)
    return Child(pid, calls, left)


def main() -> None:
    config, app, uuid = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    kills, chance, count = int(sys.argv[4]), random.Random(int(sys.argv[5])), int(sys.argv[6])
    calls = int(sys.argv[7])

    def another() -> Child:
        is_unborn = idle >= count or chance.random() < UNBORN
        return born(config, app, uuid, 0 if is_unborn else chance.randrange(1, calls))

    killed = failed = idle = 0  # idle: so many ended without work, one after the other; all of them: the queue is empty
    alive = [another() for _ in range(count)]
    while killed < kills:
        place, was_called = first_due(alive)
        time.sleep(chance.uniform(*LAST_S))
        os.kill(alive[place].pid, signal.SIGKILL)
        status = alive[place].ended()
        killed += os.WIFSIGNALED(status)
        failed += not os.WIFSIGNALED(status) and status != 0
        idle = (0 if was_called else idle) + (status == 0)
        alive[place] = another()
    for child in alive:
        failed += child.ended() != 0
    print(f"{killed} {failed}")


if __name__ == "__main__":
    main()
