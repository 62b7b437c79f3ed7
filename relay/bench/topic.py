"""Topic to topic, exactly once with deduplication, against the plain transactional loop without it.

Two plain loops: with 1,000 messages a transaction, as the client's own examples are written, and with 10,000, where
it is fastest here; both have the relay's client settings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from relay.bench.pace import pace
from relay.bench.turns import PARTITIONS, PLAIN, RELAY, in_turns, lent_topic, relay_pace, row
from relay.config.timing import Timing
from relay.kafka.plain.loop import fill
from relay.kafka.topics import Topics

TUNED: Final = "tuned"
PLAIN_MESSAGES: Final = 1_000
TUNED_MESSAGES: Final = 10_000


def run(kafka: str, messages: int = 1_500_000, rounds: int = 2) -> dict[str, Any]:
    """Measure in turns on one log of ``messages`` records of 256 bytes; return the row of `relay bench`."""
    topics = Topics({"bootstrap.servers": kafka}, Timing())
    with lent_topic(topics, "log") as log:
        fill(kafka, log, PARTITIONS, messages)

        def plain(at_once: int) -> Callable[[], float]:
            def measure() -> float:
                with lent_topic(topics, "out") as target:
                    loop = [kafka, log, target, str(PARTITIONS), str(messages), str(at_once)]
                    command = [sys.executable, "-m", "relay.kafka.plain.loop", *loop]
                    return pace(command, lambda: _filled(topics, target), messages)

            return measure

        def relay() -> float:
            with lent_topic(topics, "out") as target:
                route = f'[routes.bench]\nfrom = ["{log}"]\nto = {{ topic = "{target}" }}\n'
                return relay_pace(topics, kafka, lambda _: route, lambda: _filled(topics, target), messages)

        sides = {PLAIN: plain(PLAIN_MESSAGES), RELAY: relay, TUNED: plain(TUNED_MESSAGES)}
        return row("topic", in_turns(sides, rounds))


def _filled(topics: Topics, topic: str) -> int:
    return sum(high for _, high in topics.watermarks(topic, list(range(PARTITIONS))).values())
