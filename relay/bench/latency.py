"""How long a message takes from one topic to the other at 2,000 a second: the relay and the plain loop, in turns.

From the call that hands it to the producer until a reader of committed records has it. Lower is better, so is the ratio.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import quantiles
from typing import Any, Final

from relay.bench.peers import MARKER_KEY_BYTES, beside
from relay.bench.topic import PLAIN_MESSAGES
from relay.bench.turns import PARTITIONS, PLAIN, RELAY, lent_topic, lent_worker
from relay.config.timing import Timing
from relay.kafka.plain.clients import Steady
from relay.kafka.topics import Topics
from relay.message.errors import CheckFailed
from relay.world import clock

PER_SECOND: Final = 2_000
FLIGHTS_PER_SECOND: Final = 200
WARM_UP: Final = 10_000
START_S: Final = 60.0
SHOWN_S: Final = 20.0


def run(kafka: str, messages: int = 15_000, rounds: int = 3) -> dict[str, Any]:
    """Measure ``messages`` in each turn, behind 10,000 that warm a side up; return the row of `relay bench`.

    The first round warms the broker up and does not count (design section 12).
    """
    topics = Topics({"bootstrap.servers": kafka}, Timing())
    found: dict[str, list[float]] = {RELAY: [], PLAIN: []}
    for number in range(1 + rounds):
        for side in found:
            taken = _turn(side, topics, kafka, messages)
            if number:
                found[side] += taken
    middle, late = ({side: quantiles(counted, n=100)[percent - 1] for side, counted in found.items()} for percent in (50, 99))
    return {
        "name": "latency",
        "value": round(late[RELAY], 1),
        "unit": "ms (p99)",
        "reference": round(late[PLAIN], 1),
        "ratio": round(late[RELAY] / late[PLAIN], 3),
        "p50_ms": round(middle[RELAY], 1),
        "reference_p50_ms": round(middle[PLAIN], 1),
    }


def _turn(side: str, topics: Topics, kafka: str, messages: int) -> list[float]:
    with (
        lent_topic(topics, "log") as log,
        lent_topic(topics, "out") as out,
        beside("read", kafka, out) as seen,
        _worker(side, topics, kafka, log, out, messages) as command,
        _running(command),
    ):
        return _taken(Steady(kafka, log, PARTITIONS), seen, messages)


@contextmanager
def _worker(side: str, topics: Topics, kafka: str, log: str, out: str, messages: int) -> Iterator[list[str]]:
    if side == PLAIN:
        loop = [kafka, log, out, str(PARTITIONS), str(WARM_UP + messages), str(PLAIN_MESSAGES)]
        yield [sys.executable, "-m", "relay.kafka.plain.loop", *loop]
        return
    route = f'[routes.bench]\nfrom = ["{log}"]\nto = {{ topic = "{out}" }}\n'
    with lent_worker(topics, kafka, lambda _: route) as command:
        yield command


@contextmanager
def _running(command: Sequence[str]) -> Iterator[None]:
    process = subprocess.Popen(list(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(START_S)


def _taken(publisher: Steady, seen: dict[bytes, float], messages: int) -> list[float]:
    """Return the milliseconds that each message took, but for those of the warm-up."""
    sent = _send(publisher, range(1))
    _await(sent, seen, START_S)
    _send(publisher, range(1, WARM_UP))
    sent = _send(publisher, range(WARM_UP, WARM_UP + messages))
    publisher.flush()
    _await(sent, seen, SHOWN_S)
    return [(seen[key] - at) * 1000 for key, at in sent.items()]


def _send(publisher: Steady, numbers: range) -> dict[bytes, float]:
    """Hand over the messages in even flights; return when each was, by its key."""
    sent: dict[bytes, float] = {}
    begun = clock.monotonic()
    at_once = PER_SECOND // FLIGHTS_PER_SECOND
    for first in range(0, len(numbers), at_once):
        clock.sleep(max(0.0, begun + first / PER_SECOND - clock.monotonic()))
        for number in numbers[first : first + at_once]:
            key = number.to_bytes(MARKER_KEY_BYTES, "big")
            sent[key] = clock.monotonic()
            publisher.append(key, number)
    return sent


def _await(sent: dict[bytes, float], seen: dict[bytes, float], seconds: float) -> None:
    deadline = clock.monotonic() + seconds
    while not sent.keys() <= seen.keys():
        if clock.monotonic() > deadline:
            raise CheckFailed(f"{len(sent.keys() - seen.keys())} of {len(sent)} messages did not show within {seconds:g} s")
        clock.sleep(0.05)
