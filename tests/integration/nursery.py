"""Many short lives: forks worker processes from one that has loaded everything, and kills them at random moments.

Usage: ``python -m tests.integration.nursery CONFIG APP UUID KILLS SEED``; two workers live at a time. It ends when the
kills are done and the queue is empty, and prints how many it killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from relay.queue.desired import encode_uuid
from relay.run import logging
from relay.run.config import load
from relay.run.following import DesiredFollower
from relay.work.assembly import Assembled, Job
from relay.work.loading import load_handler
from relay.work.worker import Limits

CONCURRENCY = 8
ALIVE = 2
LIFE_S = (0.05, 0.4)
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


def live(config: Path, app: str, uuid: str) -> None:
    sys.setswitchinterval(0.0005)
    logging.setup()
    loaded = load(config)
    job = Job(load_handler(app, "orders"), "orders", "ledger")
    assembled = Assembled(loaded, job, Limits(CONCURRENCY), DesiredFollower(Recorded(uuid)))
    assembled.worker.run(IDLE_S)
    os._exit(0)


def born(config: Path, app: str, uuid: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            live(config, app, uuid)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent counts it
            print(f"a worker failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    return pid


def main() -> None:
    config, app, uuid = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    kills, chance = int(sys.argv[4]), random.Random(int(sys.argv[5]))
    alive = [born(config, app, uuid) for _ in range(ALIVE)]
    killed = failed = 0
    while killed < kills:
        time.sleep(chance.uniform(*LIFE_S) / ALIVE)
        for pid in list(alive):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                failed += status != 0
                alive[alive.index(pid)] = born(config, app, uuid)
        victim = chance.randrange(ALIVE)
        os.kill(alive[victim], signal.SIGKILL)
        _, status = os.waitpid(alive[victim], 0)
        killed += os.WIFSIGNALED(status)
        alive[victim] = born(config, app, uuid)
    for pid in alive:
        _, status = os.waitpid(pid, 0)
        failed += status != 0
    print(f"{killed} {failed}")


if __name__ == "__main__":
    main()
