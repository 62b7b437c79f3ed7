"""A worker's process whose wall clock is wrong by what a file says, so that it jumps when the file changes.

Run as ``python -m relay.chaos.skewed FILE`` and the arguments of ``relay.run.process``. Nothing in production can switch
it on: this module puts its own ``wall_ms`` in the place of the clock's, as a simulation does, before the worker starts.
The monotonic clock is left alone, because no system makes it jump: it stands still in suspension, which looks to everybody
else as a frozen process does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from relay.run import process
from relay.world import clock


def skew(file: Path) -> None:
    """Let this process's wall clock be off by the milliseconds in ``file``, read again at every look; 0 without it."""
    true_ms = clock.wall_ms

    def wall_ms() -> int:
        try:
            return true_ms() + int(file.read_text())
        except FileNotFoundError:
            return true_ms()

    clock.wall_ms = wall_ms


def jump(file: Path, offset_s: float) -> None:
    """Let the clocks that follow ``file`` be so many seconds ahead (behind if negative) from now on."""
    fresh = file.with_suffix(".new")
    fresh.write_text(str(round(offset_s * 1000)))
    fresh.replace(file)


def main(arguments: list[str]) -> int:
    """Run a worker whose clock follows the file named first; return the exit code."""
    skew(Path(arguments[0]))
    return process.main(arguments[1:])


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # librdkafka's threads may still wait for brokers; everything durable is done
