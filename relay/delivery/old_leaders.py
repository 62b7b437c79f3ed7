"""A broker that is cut off from its peers, and not from clients, and that does not know that it leads a partition no more.

It goes on telling where the partition ended under it, while others write under its successor: a client whose first broker it
is believes that. What a recovery reads by its word is not all that there is, and what it misses it would deliver again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

from relay.delivery.ports import KafkaPorts
from relay.message.envelope import OUT_INSTANCE
from relay.message.errors import Retriable
from relay.message.record import LogPartition, headers_if_any


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
    unread = {
        LogPartition(topic, partition): (high, at)
        for partition, (_, high) in highs.items()
        if (at := begun(partition)) is not None and at > high
    }
    if not unread:
        return
    with ports.reader(committed=False, meanwhile=meanwhile) as scanner:
        if any(scanner.read(unread)):
            _look_again(topic)


def check_shown(
    ports: KafkaPorts,
    ends: Mapping[LogPartition, int],
    last: Callable[[LogPartition], int | None],
    former: Collection[bytes],
    meanwhile: Callable[[], object],
) -> None:
    """Raise Retriable if an output has records of ``former`` instances behind the end that was told after these were fenced.

    ``last`` is where a claim has just written again what it did not find there. Others may write to an output at any time.
    """
    unread = {place: (end, at) for place, end in ends.items() if (at := last(place)) is not None and at > end}
    if not unread:
        return
    names = {instance.hex().encode() for instance in former}
    with ports.reader(committed=False, meanwhile=meanwhile) as scanner:
        for records in scanner.read(unread):
            for record in records:
                if dict(headers_if_any(record)).get(OUT_INSTANCE) in names:
                    _look_again(record.topic() or "")


def _look_again(topic: str) -> NoReturn:
    raise Retriable(f"{topic} goes on behind where a broker said that it ends, which may be cut off from the others; recovery looks again")
