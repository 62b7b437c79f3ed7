"""The kinds of runs there are, by name; a seed alone chooses one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.capture_run import run_capture
from tests.simulation.route_trial import run_route
from tests.simulation.trial import Outcome, run_topic

KINDS: Final[dict[str, Callable[..., Outcome]]] = {
    "topic": run_topic,
    "route": run_route,
    "capture": run_capture,
}
_BY_SEED: Final = ("topic", "route", "topic", "route", "capture")


def run(seed: int, kind: str = "any", *, tracing: bool = False) -> Outcome:
    """Run one seed of a kind; "any" lets the seed choose."""
    return KINDS[_BY_SEED[seed % len(_BY_SEED)] if kind == "any" else kind](seed, tracing=tracing)
