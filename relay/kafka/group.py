"""The route's consumer: one member of one group, all of whose calls happen on one thread.

Records are tagged by the assignment's generation: whatever was read before a rebalance is thrown away after it.
A rebalance assigns nothing by itself; the worker recovers first and then calls ``start`` with explicit offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from relay.kafka.clients import Consumer
from relay.kafka.failures import is_denied, is_end_of_partition, is_locked_out, sentence
from relay.kafka.logins import refusal_of
from relay.kafka.reading import latest, named
from relay.message.errors import LOCKED_OUT_S, Fenced, LockedOut, Stopped, Unreachable
from relay.message.record import LogPartition
from relay.world import clock

_METADATA_PREFIX: Final = b"CGMDv2:"
COMMITTED_TIMEOUT_S: Final = 10.0
REFUSALS_APART_S: Final = 60.0
"""The client repeats an error every 30 seconds."""
STAY_PERIOD_S: Final = 1.0
"""A recovery polls this often: far more often than any max.poll.interval.ms asks, and too seldom to cost anything."""


class GroupConsumer:
    """Subscribes to the log topics; ``generation`` changes with every assignment and revocation."""

    def __init__(self, settings: Mapping[str, object], topics: Sequence[str], on_revoked: Callable[[], None]) -> None:
        self._given = settings
        self.name = str(settings.get("group.id", ""))
        self.generation = 0
        self.assigned: list[LogPartition] | None = None
        self._on_revoked = on_revoked
        self._stayed_at = float("-inf")
        self._denials: list[Any] = []
        self._refused: tuple[float, float] | None = None
        self._consumer = Consumer({**settings, "enable.partition.eof": True, "error_cb": self._on_error}, watched=True)
        self._consumer.subscribe(list(topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        """Return up to ``count`` records and end-of-partition events; serves rebalances.

        Raises LockedOut where the brokers' ever same answer is that the password is wrong: it has changed since this process began;
        Unreachable where the client has forgotten all brokers.
        """
        found = self._consumer.consume(count, timeout_s)
        if self._consumer.is_lost:
            raise Unreachable("the Kafka client has forgotten all brokers, and looks for none any more; another one begins anew")
        if self._refused is not None:
            self._look_locked_out(found, *self._refused)
        if self._denials:
            found, self._denials = [*self._denials, *found], []
        return found

    def stay(self) -> None:
        """Stay a member during a recovery, however long it reads: poll, once a second at most.

        Nothing is assigned to read meanwhile, and whatever else comes is read again from where ``start`` says; only
        that the group refuses this member is said once, and kept for ``consume``. Raises Fenced once the assignment is
        another one: what was recovered for the former is of no use.
        """
        now = clock.monotonic()
        if now < self._stayed_at + STAY_PERIOD_S:
            return
        self._stayed_at = now
        generation = self.generation
        found = self._consumer.consume(1, 0.0)
        self._denials += [one for one in found if (error := one.error()) is not None and is_denied(error)]
        if self.generation != generation:
            raise Fenced("the group gave its partitions out anew while this worker recovered; it begins with those it has now")

    def start(self, offsets: Mapping[LogPartition, int]) -> None:
        """Begin to read the assigned partitions at these offsets."""
        self._consumer.assign([TopicPartition(p.topic, p.partition, offset) for p, offset in offsets.items()])

    def stand_by(self) -> None:
        """Read nothing, stay a member: before every recovery, so that a member kicked out learns it."""
        self._consumer.unassign()

    def membership(self) -> bytes:
        """Return the group metadata to send with offsets. Raises Fenced if this is no member of the group.

        The broker accepts generation -1 with an empty member id while another member owns the partitions, so both
        are refused here.
        """
        metadata: bytes = self._consumer.consumer_group_metadata()
        if not metadata.startswith(_METADATA_PREFIX):
            raise Stopped("the Kafka client's group metadata has a form that this version does not know; pin the client")
        body = metadata[len(_METADATA_PREFIX) :]
        (generation,) = struct.unpack_from("<i", body)
        member = body[4:].split(b"\0")[1]
        if generation < 0 or not member:
            raise Fenced("this worker is no member of its consumer group")
        return metadata

    def committed(self, partitions: Sequence[LogPartition]) -> dict[LogPartition, tuple[int, str]]:
        """Return (offset, metadata) for the partitions that have a stable committed offset."""
        wanted = [TopicPartition(p.topic, p.partition) for p in partitions]
        try:
            found = self._consumer.committed(wanted, timeout=COMMITTED_TIMEOUT_S)
        except KafkaException as error:
            raise Unreachable(f"the committed offsets cannot be read: {sentence(error)}") from error
        for one in found:
            if one.error is not None:
                raise Unreachable(f"the committed offset of {one.topic}[{one.partition}]: {one.error.str()}")
        return {
            LogPartition(one.topic, one.partition): (one.offset, one.metadata or "")
            for one in found
            if one.offset >= 0
        }

    def stable_ends(self, places: Collection[LogPartition], wait_s: float) -> dict[LogPartition, int]:
        """Return up to where no Kafka transaction is open: nothing at or above it can be read. Raises Unreachable."""
        try:
            return latest(self._consumer, places, wait_s)
        except KafkaException as error:
            raise Unreachable(f"the stable ends of {named(places)} cannot be read: {sentence(error)}") from error

    def commit(self, positions: Mapping[LogPartition, int], notes: Mapping[str, str], *, wait: bool) -> None:
        """Commit positions outside a transaction: a hint on table routes, the first position on topic routes."""
        offsets = [TopicPartition(p.topic, p.partition, o, notes.get(p.topic, "")) for p, o in positions.items()]
        try:
            if not wait:
                self._consumer.commit(offsets=offsets, asynchronous=True)
                return
            answered = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if not wait:
                return  # retry: it is a hint, and the next batch commits a later one
            raise Unreachable(f"the first position cannot be stored: {sentence(error)}") from error
        for one in answered or []:
            if one.error is not None:
                raise Unreachable(f"the first position of {one.topic}[{one.partition}]: {one.error.str()}")

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _assign(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        self.generation += 1
        self.assigned = [LogPartition(p.topic, p.partition) for p in partitions]
        self._consumer.assign([])

    def _revoke(self, _consumer: object, _partitions: list[TopicPartition]) -> None:
        self.generation += 1
        self.assigned = None
        self._on_revoked()
        self._consumer.unassign()

    def _look_locked_out(self, found: Sequence[Any], since: float, last: float) -> None:
        if any((error := one.error()) is None or is_end_of_partition(error) for one in found):
            self._refused = None
        elif last - since >= LOCKED_OUT_S:
            raise LockedOut(
                f"{refusal_of(self._given)}, which may have changed since this process began; another one reads them again"
            )

    def _on_error(self, error: KafkaError) -> None:
        if is_locked_out(error):
            now = clock.monotonic()
            is_new = self._refused is None or now - self._refused[1] > REFUSALS_APART_S
            self._refused = (now if is_new or self._refused is None else self._refused[0], now)
