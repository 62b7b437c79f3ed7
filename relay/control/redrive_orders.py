"""Ordering a redrive: dead letters become orders to the owners of their partitions, and what comes of them is awaited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, Final, Self

from relay.config.model import RelayConfig
from relay.kafka.topics import TopicFacts, Topics
from relay.message.identity import DIGEST_BYTES
from relay.message.record import LogPartition
from relay.monitor.redrive import REPLAYS_MAX, ROWS_MAX, Ending, Order, Orders, Wanted, encode
from relay.run.following import control_records, control_topic
from relay.world import clock, randomness

LOOK_S: Final = 0.1


@dataclass
class Ordered:
    """What was chosen (``rows``), what of it cannot be ordered (``left``, by reason), and what became of the orders."""

    rows: Sequence[Mapping[str, Any]]
    left: Counter[str]
    orders: list[Order]
    endings: list[Ending] = field(default_factory=list)

    @property
    def delivered(self) -> int:
        """Messages that this redrive, or one before, delivered."""
        return sum(one.delivered for one in self.endings)

    @property
    def died(self) -> int:
        """Messages that died again."""
        return sum(one.died for one in self.endings)

    @property
    def refused(self) -> Counter[str]:
        """Messages that their owners would not try, by reason."""
        found: Counter[str] = Counter()
        for one in self.endings:
            found.update(one.refused)
        return found

    @property
    def waiting(self) -> int:
        """Messages of orders without an ending."""
        ended = {one.id for one in self.endings}
        return sum(len(order.wanted) for order in self.orders if order.id not in ended)

    @property
    def is_all_delivered(self) -> bool:
        """Was every message that was chosen delivered?"""
        return self.delivered == len(self.rows) + self.left.total()

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "orders": [order.id.hex() for order in self.orders],
            "messages": list(self.rows),
            "left": dict(self.left),
            "delivered": self.delivered,
            "died": self.died,
            "refused": dict(self.refused),
            "waiting": self.waiting,
        }


class Ordering:
    """Writes orders into the control topic of a relay and reads their endings."""

    def __init__(self, config: RelayConfig) -> None:
        self._config = config
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plan(self, rows: Sequence[Mapping[str, Any]], who: str) -> Ordered:
        """Make the orders for these dead letters; nothing is written. Raises Unreachable."""
        names = self._config.log_topics
        with Topics(self._config.kafka, self._config.timing) as topics:
            facts = topics.describe(sorted(names), settings=False)
        left: Counter[str] = Counter()
        good = []
        for row in rows:
            reason = self._obstacle(row, facts)
            if reason:
                left[reason] += 1
            else:
                good.append(row)
        return Ordered(good, left, list(_orders(good, facts, who)))

    def order(self, ordered: Ordered, wait_s: float, written: Callable[[], None] = lambda: None) -> Ordered:
        """Write the orders, say so by ``written`` and wait for their endings. Raises Unreachable: what was written stands."""
        control = control_topic(self._config)
        self._stack.callback(control.close)
        for order in ordered.orders:
            control.put(*encode(order), wait=True)
        written()
        followed = control_records(self._config)
        self._stack.callback(followed.close)
        known, limit = Orders(), clock.monotonic() + wait_s
        while True:
            for key, value in followed.records():
                known.add(key, value)
            ordered.endings = [known.endings[one.id] for one in ordered.orders if one.id in known.endings]
            if len(ordered.endings) == len(ordered.orders) or clock.monotonic() >= limit:
                return ordered
            clock.sleep(LOOK_S)

    def _obstacle(self, row: Mapping[str, Any], facts: Mapping[str, TopicFacts]) -> str:
        """Say why nobody could obey an order for this dead letter; nothing if somebody may."""
        route = self._config.routes.get(row["route"])
        if route is None:
            return f"route {row['route']!r} is configured no more"
        if row["topic"] not in route.from_ or row["topic"] not in facts:
            return f"route {row['route']!r} does not read topic {row['topic']!r} any more"
        if row["partition"] >= facts[row["topic"]].partitions:
            return f"topic {row['topic']!r} has no partition {row['partition']}"
        if row["replay_count"] >= REPLAYS_MAX:
            return f"redriven {REPLAYS_MAX} times already: publish it again under a new id"
        return "" if _digest(row) else "its key is no digest: the relay has not written it"


def _orders(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, TopicFacts], who: str) -> Iterator[Order]:
    """Yield orders of up to ``ROWS_MAX`` messages, each for one partition of a route, in the order of the log."""
    by_place = sorted(rows, key=lambda row: (*_place(row), row["offset"]))
    for (route, topic, partition), mine in groupby(by_place, key=_place):
        while part := list(islice(mine, ROWS_MAX)):
            wanted = [Wanted(row["offset"], _digest(row), row["replay_count"] + 1) for row in part]
            place = LogPartition(topic, partition)
            yield Order(randomness.uuid_bytes(), route, place, facts[topic].topic_id, wanted, who, clock.wall_ms())


def _place(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["route"], row["topic"], row["partition"]


def _digest(row: Mapping[str, Any]) -> bytes:
    """Return the digest that a dead letter is keyed by; nothing if its key is none."""
    try:
        found = bytes.fromhex(row["digest"])
    except ValueError:
        return b""
    return found if len(found) == DIGEST_BYTES else b""
