"""Many short lives: forks worker processes from one that has loaded everything, and kills them at random moments.

Usage: ``python -m tests.integration.nursery CONFIG APP UUID KILLS SEED ALIVE CALLS``; so many workers live at a time. A life is
measured in work, whatever the machine is busy with: up to so many calls of the handler, but one in ten dies at any moment,
perhaps before its first. It ends when the kills are done and the queue is empty, and prints how many it killed and how many
ended wrongly.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relay.config.loading import load
from relay.queue.desired import encode_uuid
from relay.run import logging
from relay.run.following import DesiredFollower
from relay.work.assembly import Assembled, Job
from relay.work.loading import load_handler
from relay.work.worker import Limits

CONCURRENCY = 8
UNBORN = 0.1
LAST_S = (0.0, 0.05)
IDLE_S = 1.0


class Recorded:
    """What the control topic would say: the queue's uuid, once."""

    def __init__(self, uuid: str) -> None:
        self._left = [encode_uuid("orders", uuid)]

    def records(self) -> list[tuple[bytes, bytes | None]]:
        found, self._left = self._left, []
        return list(found)

    def close(self) -> None:
        pass


@dataclass
class Child:
    """A worker process; it writes a byte into ``calls`` for each call of its handler."""

    pid: int
    calls: int

    def wait_for(self, count: int) -> None:
        """Wait until its handler was called so often; its end is enough, too."""
        while count > 0 and (read := os.read(self.calls, count)):
            count -= len(read)

    def ended(self, flags: int = 0) -> int | None:
        """Return the process's status if it has ended."""
        found, status = os.waitpid(self.pid, flags)
        if not found:
            return None
        os.close(self.calls)
        return status


def live(config: Path, app: str, uuid: str, say: int) -> None:
    sys.setswitchinterval(0.0005)
    logging.setup()
    loaded = load(config)
    handler = load_handler(app, "orders")
    os.set_blocking(say, False)

    def tell(*given: Any) -> None:
        with suppress(BlockingIOError):
            os.write(say, b".")
        handler(*given)

    job = Job(replace(handler, function=tell), "orders", "ledger")
    assembled = Assembled(loaded, job, Limits(CONCURRENCY), DesiredFollower(Recorded(uuid)))
    assembled.worker.run(IDLE_S)
    os._exit(0)


def born(config: Path, app: str, uuid: str) -> Child:
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
    return Child(pid, calls)


def main() -> None:
    config, app, uuid = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    kills, chance, count = int(sys.argv[4]), random.Random(int(sys.argv[5])), int(sys.argv[6])
    calls = int(sys.argv[7])
    alive = [born(config, app, uuid) for _ in range(count)]
    killed = failed = 0
    is_empty = False
    while killed < kills:
        for place, child in enumerate(alive):
            status = child.ended(os.WNOHANG)
            if status is not None:
                failed += status != 0
                is_empty = is_empty or status == 0
                alive[place] = born(config, app, uuid)
        place = chance.randrange(count)
        if chance.random() >= UNBORN and not is_empty:
            alive[place].wait_for(chance.randrange(1, calls))
        time.sleep(chance.uniform(*LAST_S))
        os.kill(alive[place].pid, signal.SIGKILL)
        status = alive[place].ended()
        assert status is not None
        killed += os.WIFSIGNALED(status)
        failed += not os.WIFSIGNALED(status) and status != 0
        is_empty = is_empty or status == 0
        alive[place] = born(config, app, uuid)
    for child in alive:
        failed += child.ended() != 0
    print(f"{killed} {failed}")


if __name__ == "__main__":
    main()
