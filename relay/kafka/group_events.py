"""What a group's client gives in place of a record: the end of a partition, or an error, each of which means something else."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaError

from relay.kafka.failures import (
    DENIED_REMEDY,
    MISSING,
    is_denied,
    is_end_of_partition,
    is_expelled,
    is_passing,
)
from relay.message.errors import Fenced, Retriable, Stopped, Unreachable
from relay.message.record import LogPartition

_OUT_OF_RANGE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""The log begins above the offset, ends below it, or was cut there; a client that is told to start anew somewhere says which less well."""


class GroupEvents:
    """Says what comes in place of records means for the worker that reads for a group."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._unreadable: dict[LogPartition, int] = {}

    def end_of_partition(self, event: Any) -> tuple[LogPartition, int] | None:
        """Return which partition was read to its end, and that offset; None for what passes without a word.

        Raises Fenced for a member that was too slow, Unreachable for what passes by itself, Retriable where a recovery may find out
        what is wrong with an offset, Stopped for what does not pass, and where that recovery found nothing.
        """
        error = event.error()
        partition = LogPartition(event.topic() or "", event.partition() or 0)
        if is_end_of_partition(error):
            return partition, event.offset() or 0
        if is_expelled(error):
            raise Fenced("this worker was silent for longer than max.poll.interval.ms and has lost its partitions")
        if is_denied(error):
            what = repr(partition.topic) if partition.topic else f"group {self._group}"
            raise Stopped(f"Kafka refuses to let {what} be read: {error.name()}; {DENIED_REMEDY}")
        if not partition.topic:
            raise Unreachable(f"group {self._group} cannot be looked for now: {error.name()}, {error.str()}")
        if error.code() in MISSING:
            # So the client puts whatever a broker says of a topic in place of its partitions, and before the group takes these away.
            raise Unreachable(
                f"{partition.topic} is not known to the broker that was asked ({error.name()}), which passes if that is just being "
                "started; if it was deleted, create it again as it was"
            )
        if is_passing(error):
            raise Unreachable(f"{partition.topic}[{partition.partition}] cannot be read now: {error.name()}")
        if not error.retriable():
            said = f"{partition.topic}[{partition.partition}] cannot be read at its position ({error.name()}, {error.str()})"
            if error.code() in _OUT_OF_RANGE and self._unreadable.get(partition) != event.offset():
                self._unreadable[partition] = event.offset()
                raise Retriable(f"{said}; what the log has now tells why")
            raise Stopped(
                f"{said}: messages left the log unread, its end was lost, or the topic was created again; find out which before you "
                "start the route again or move the position"
            )
        return None


def said_of_membership(event: Any, group: str) -> str | Stopped | None:
    """Return what keeps a member without partitions out of its group: Stopped if the group refuses it for good.

    What else does (a stranger in the group, a session that the brokers find too short) may pass, and is said again and
    again by the client.
    """
    error = event.error()
    if error is None or is_end_of_partition(error):
        return None
    said = f"{error.name()}: {error.str()}"
    return Stopped(f"Kafka refuses: {said}, for group {group}; {DENIED_REMEDY}") if is_denied(error) else said
