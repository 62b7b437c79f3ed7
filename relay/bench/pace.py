"""How fast a destination fills: sampled from outside, measured between 20 and 90 percent of the run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from relay.message.errors import CheckFailed
from relay.world import clock

SAMPLE_S: Final = 0.05
WARM: Final = 0.2
END: Final = 0.9
DEADLINE_S: Final = 300.0


def pace(command: Sequence[str], filled: Callable[[], int], total: int) -> float:
    """Run ``command`` until the destination holds ``total`` and return messages per second of the warm part."""
    process = subprocess.Popen(list(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    samples: list[tuple[float, int]] = []
    limit = clock.monotonic() + DEADLINE_S
    try:
        while not samples or samples[-1][1] < total:
            if process.poll() is not None and filled() < total:
                said = process.stderr.read().decode()[-500:] if process.stderr else ""
                raise CheckFailed(
                    f"{command[1:4]} ended with code {process.returncode} before it was done: {said}"
                )
            if clock.monotonic() > limit:
                raise CheckFailed(f"{command[1:4]} reached {filled()} of {total} within {DEADLINE_S:.0f} s")
            samples.append((clock.monotonic(), filled()))
            clock.sleep(SAMPLE_S)
    finally:
        process.terminate()
        process.wait(30)
    return rate(samples, total)


def rate(samples: Sequence[tuple[float, int]], total: int) -> float:
    """Messages per second between the first sample past 20 % and the first past 90 %."""
    start = next(sample for sample in samples if sample[1] >= WARM * total)
    end = next(sample for sample in samples if sample[1] >= END * total)
    if end[0] <= start[0]:
        raise CheckFailed("the run is too short to be measured; give more messages")
    return (end[1] - start[1]) / (end[0] - start[0])
