"""Orders to redrive dead letters: a person writes them into the control topic, the owner of the partition obeys.

An order names the replay number that this redrive of a message has. The message is delivered if and only if its entry
says that it is dead, and was redriven one time less: so an order that is read twice, or obeyed by an owner that dies
before it could say so, delivers nothing twice (design sections 6 and 14).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from relay.message.identity import DIGEST_BYTES
from relay.message.record import LogPartition
from relay.message.schemas import UnknownRecord, codec
from relay.monitor.index import Standing
from relay.monitor.rows import split

ORDER_PREFIX: Final = b"redrive/"
ENDING_PREFIX: Final = b"redriven/"
REPLAYS_MAX: Final = 255
"""A monitor entry has one byte for the number."""
ROWS_MAX: Final = 1000
"""Messages of one order: 30 kB in a small topic."""


class Wanted(NamedTuple):
    """One dead message of an order: where it lies, what it is, and the number that this redrive of it has."""

    offset: int
    digest: bytes
    replay: int


@dataclass(frozen=True, slots=True)
class Order:
    """Dead messages of one log partition that a route is to deliver once more; ``at`` is wall milliseconds."""

    id: bytes
    route: str
    place: LogPartition
    topic_id: bytes
    wanted: Sequence[Wanted]
    who: str
    at: int

    @property
    def key(self) -> bytes:
        """The record's key in the control topic."""
        return ORDER_PREFIX + self.id.hex().encode()


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of an order; ``refused`` counts what was not tried, by reason."""

    id: bytes
    worker: str
    at: int
    delivered: int
    died: int
    refused: Mapping[str, int]


class Do(Enum):
    """What an owner does with a message of an order."""

    DELIVER = "deliver it"
    DELIVERED = "nothing: this redrive, or a later one, delivered it"
    DIED = "nothing: in this redrive, or a later one, it died again"
    REFUSE = "nothing: it must not be tried"


FORGOTTEN: Final = "the monitor has no entry of it any more: publish it again under a new id"
NOT_DEAD: Final = "it was delivered"
SKIPS_ONE: Final = "an earlier redrive of it is missing: order it again"


def decide(wanted: Wanted, standing: Standing | None) -> tuple[Do, str]:
    """Return what to do with a message, by its entry alone; a refusal comes with its reason."""
    if standing is None:
        return Do.REFUSE, FORGOTTEN
    if standing.replay >= wanted.replay:
        return (Do.DIED if standing.is_dead else Do.DELIVERED), ""
    if not standing.is_dead:
        return Do.REFUSE, NOT_DEAD
    if standing.replay + 1 != wanted.replay:
        return Do.REFUSE, SKIPS_ONE
    return Do.DELIVER, ""


def encode(order: Order) -> tuple[bytes, bytes]:
    """Return key and value of an order."""
    record = {
        "id": order.id,
        "route": order.route,
        "topic": order.place.topic,
        "topic_id": order.topic_id,
        "partition": order.place.partition,
        "offsets": [one.offset for one in order.wanted],
        "digests": b"".join([one.digest for one in order.wanted]),
        "replays": bytes(one.replay for one in order.wanted),
        "who": order.who,
        "at": order.at,
    }
    return order.key, codec("redrive").encode(record)


def encode_ending(ending: Ending) -> tuple[bytes, bytes]:
    """Return key and value of an order's ending."""
    record = {
        "id": ending.id,
        "worker": ending.worker,
        "at": ending.at,
        "delivered": ending.delivered,
        "died": ending.died,
        "refused": [{"reason": reason, "messages": count} for reason, count in ending.refused.items()],
    }
    return ENDING_PREFIX + ending.id.hex().encode(), codec("redriven").encode(record)


@dataclass(slots=True)
class Orders:
    """The records of the control topic, folded: orders without an ending, and the endings."""

    open: dict[bytes, Order] = field(default_factory=dict)
    endings: dict[bytes, Ending] = field(default_factory=dict)

    def add(self, key: bytes, value: bytes | None) -> None:
        """Take the next record; what is none of ours, or cannot be read, is passed over."""
        try:
            if key.startswith(ENDING_PREFIX) and value is not None:
                record = codec("redriven").decode(value)
                refused = {one["reason"]: one["messages"] for one in record["refused"]}
                ending = Ending(**{**record, "refused": refused})
                self.endings[ending.id] = ending
                self.open.pop(ending.id, None)
            elif key.startswith(ORDER_PREFIX) and value is None:
                self.open.pop(bytes.fromhex(key[len(ORDER_PREFIX) :].decode()), None)
            elif key.startswith(ORDER_PREFIX) and value is not None:
                order = _read(codec("redrive").decode(value))
                if order.key == key and order.id not in self.endings:
                    self.open.setdefault(order.id, order)
        except (UnknownRecord, ValueError):
            return

    def of(self, route: str, places: Mapping[LogPartition, Any]) -> list[Order]:
        """Return the open orders for these partitions of a route, in the order in which they were written."""
        return [order for order in self.open.values() if order.route == route and order.place in places]


def _read(record: Mapping[str, Any]) -> Order:
    count = len(record["offsets"])
    if len(record["digests"]) != DIGEST_BYTES * count or len(record["replays"]) != count or count > ROWS_MAX:
        raise UnknownRecord("the columns of an order differ in length, or are too long")
    rows = zip(record["offsets"], split(record["digests"]), record["replays"], strict=True)
    return Order(
        record["id"],
        record["route"],
        LogPartition(record["topic"], record["partition"]),
        record["topic_id"],
        [Wanted(*row) for row in rows],
        record["who"],
        record["at"],
    )
