"""A broker that is cut off from its peers, and not from clients, and that does not know that it leads a partition no more.

It goes on telling where the partition ended under it, while others write under its successor: a client whose first broker it
is believes that. What a recovery reads by its word is not all that there is, and what it misses it would deliver again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from relay.delivery.ports import KafkaPorts
from relay.message.envelope import OUT_INSTANCE
from relay.message.errors import Retriable
from relay.message.record import LogPartition, Record, headers_if_any

_LOOK_AGAIN: Final = "{} goes on behind where a broker said that it ends, which may be cut off from the others; recovery looks again"


def check_whole(
    ports: KafkaPorts,
    topic: str,
    highs: Mapping[int, tuple[int, int]],
    begun: Callable[[int], int | None],
    meanwhile: Callable[[], object],
) -> None:
    """Raise Retriable if a record lies between the end up to which a monitor partition was read and a begin written after that.

    Its leader has acknowledged that one with its peers. Whoever was fenced writes no more: it comes next, or behind a marker.
    """
    places = {LogPartition(topic, partition): (high, begun(partition)) for partition, (_, high) in highs.items()}
    if any(True for _ in _between(ports, places, meanwhile)):
        raise Retriable(_LOOK_AGAIN.format(topic))


def check_shown(
    ports: KafkaPorts,
    ends: Mapping[LogPartition, int],
    behind: Callable[[LogPartition], int],
    former: Collection[bytes],
    meanwhile: Callable[[], object],
) -> None:
    """Raise Retriable if an output has records of ``former`` instances behind the end that was told after these were fenced.

    Below ``behind`` a claim has just written again what it did not find there. Others may write to an output at any time.
    """
    names = {instance.hex().encode() for instance in former}
    places = {place: (end, behind(place) - 1) for place, end in ends.items()}
    topic = next(
        (one.topic() for one in _between(ports, places, meanwhile) if dict(headers_if_any(one)).get(OUT_INSTANCE) in names), None
    )
    if topic is not None:
        raise Retriable(_LOOK_AGAIN.format(topic))


def _between(
    ports: KafkaPorts, places: Mapping[LogPartition, tuple[int, int | None]], meanwhile: Callable[[], object]
) -> Iterator[Record]:
    """Yield what lies between where each partition was said to end and what was written there since, if anything was."""
    unread = {place: (end, last) for place, (end, last) in places.items() if last is not None and last > end}
    if unread:
        with ports.reader(committed=False, meanwhile=meanwhile) as scanner:
            for records in scanner.read(unread):
                yield from records
