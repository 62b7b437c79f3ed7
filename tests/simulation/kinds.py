"""The kinds of runs there are, by name; a seed alone chooses one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.capture_run import run_capture
from tests.simulation.log_trial import run_log
from tests.simulation.putting_trial import run_putting
from tests.simulation.queue_trial import run_queue
from tests.simulation.route_trial import run_route
from tests.simulation.trial import Outcome, run_topic, run_unverified

KINDS: Final[dict[str, Callable[..., Outcome]]] = {
    "topic": run_topic,
    "route": run_route,
    "capture": run_capture,
    "queue": run_queue,
    "log": run_log,
    "putting": run_putting,
    "unverified": run_unverified,
}
_BY_SEED: Final = ("topic", "route", "topic", "route", "capture")
_QUEUE_EVERY: Final = 17
"""Of so many seeds one is of queues, which take longer; a prime, so that it comes instead of each other kind alike."""
_PUTTING_EVERY: Final = 13
"""Of so many seeds one is of a route into a queue."""
_LOG_EVERY: Final = 19
"""Of so many seeds one is of a log that is trimmed or created again."""
_UNVERIFIED_EVERY: Final = 23
"""Of so many seeds one is of brokers that do not verify the partitions of transactions."""


def run(seed: int, kind: str = "any", *, tracing: bool = False) -> Outcome:
    """Run one seed of a kind; "any" lets the seed choose."""
    by_seed = _BY_SEED[seed % len(_BY_SEED)]
    if seed % _PUTTING_EVERY == _PUTTING_EVERY - 1:
        by_seed = "putting"
    if seed % _UNVERIFIED_EVERY == _UNVERIFIED_EVERY - 1:
        by_seed = "unverified"
    if seed % _LOG_EVERY == _LOG_EVERY - 1:
        by_seed = "log"
    if seed % _QUEUE_EVERY == _QUEUE_EVERY - 1:
        by_seed = "queue"
    return KINDS[by_seed if kind == "any" else kind](seed, tracing=tracing)
