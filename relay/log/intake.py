"""Intake: records of the assigned partitions become messages with identity, lane and capture, ready or held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from relay.capture.decisions import unit_of
from relay.capture.outcomes import decode_marker, is_marker
from relay.log.anchor import Anchor, NewEpoch, Trail
from relay.log.ended import OUTCOMES_LEAST, OUTCOMES_REMEMBERED, Decision
from relay.log.holds import RANGES_KEPT, RANGES_LEAST, Aborted, Hold, HoldBudget, PartitionHolds, Waiting
from relay.message.envelope import (
    CAPTURE,
    CAPTURE_HEX_CHARS,
    HEADERS_MAX,
    LOG_ONLY_HEADERS,
    RESOURCE,
    SOURCE,
    Headers,
    ResourceName,
    capture_of,
    outgoing,
)
from relay.message.errors import MessageRejected
from relay.message.identity import Rule, content_digest, position_digest
from relay.message.limits import raise_limit
from relay.message.record import LogMessage, LogPartition, Record, headers_of

log = structlog.get_logger("relay.intake")
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function: twice the time


class Event(Record, Protocol):
    """A record, or the news of an error or an end of partition in its place."""

    def error(self) -> object | None: ...


Lane = Callable[[Mapping[str, bytes], bytes, bytes | None, bytes, int], bytes]
"""(headers, topic, key, digest, partition) -> the lane's name within the partition."""

LANES: Final[dict[str, Lane]] = {
    "publisher": lambda headers, topic, _key, _digest, _partition: headers.get(SOURCE) or topic,
    "key": lambda _headers, _topic, key, _digest, _partition: key or b"",
    "partition": lambda _headers, topic, _key, _digest, partition: topic + b"/%d" % partition,
    "none": lambda _headers, _topic, _key, digest, _partition: digest,
}


class Intake:
    """What the assigned partitions have shown; fed with records and the time, asked for batches and questions."""

    def __init__(
        self,
        rules: Sequence[Rule],
        order: str,
        *,
        budget: HoldBudget,
        marker_wait_s: float,
        askable: frozenset[str],
    ) -> None:
        self._rules = rules
        self._first_rule: Rule = rules[0] if rules else lambda *_: None
        self._lane = LANES[order]
        self._budget = budget
        self._marker_wait_s = marker_wait_s
        self._askable = askable
        self._topic_ids: Mapping[str, bytes] = {}
        self._topic_raw: Mapping[str, bytes] = {}
        self.partitions: dict[LogPartition, PartitionHolds] = {}
        self._behind: set[LogPartition] = set()
        self._trails: dict[LogPartition, Trail] = {}
        self._epochs: dict[LogPartition, NewEpoch] = {}

    def start(self, starts: Mapping[LogPartition, int], topic_ids: Mapping[str, bytes]) -> None:
        """Begin anew at these offsets; whatever was held before is read again."""
        for held in self.partitions.values():
            held.release_budget()
        self._topic_ids = topic_ids
        self._topic_raw = {topic: topic.encode() for topic in topic_ids}
        outcomes_max = max(OUTCOMES_LEAST, OUTCOMES_REMEMBERED // max(len(starts), 1))
        ranges_max = max(RANGES_LEAST, RANGES_KEPT // max(len(starts), 1))
        self._behind.clear()
        self.partitions = {
            p: PartitionHolds(p, offset, self._budget, self._marker_wait_s, outcomes_max, ranges_max)
            for p, offset in starts.items()
        }
        self._trails = {p: Trail() for p in starts}
        self._epochs = {}

    def take(self, records: Iterable[Event], now: float) -> list[Event]:
        """Sort records in and return the events among them (errors and ends of partitions).

        Records of partitions that are no longer assigned are dropped.
        """
        events: list[Event] = []
        derive = self.derive
        held: PartitionHolds | None = None
        lasts: dict[LogPartition, Event] = {}
        last: Event | None = None
        blocked = False
        topic, partition = "", -1
        several_topics = len(self._topic_raw) != 1
        for record in records:
            if record.error() is not None:
                events.append(record)
                continue
            if record.partition() != partition or (several_topics and record.topic() != topic):
                if held is not None and last is not None:
                    lasts[held.partition] = last
                topic, partition = record.topic() or "", record.partition() or 0
                held = self.partitions.get(LogPartition(topic, partition))
                blocked = held is not None and held.is_blocked
            if held is None:
                continue
            last = record
            message = derive(record, topic, partition)
            if message is None:
                self._mark(held, record, now)
            elif message.capture is None and not blocked:
                held.read_to = message.offset + 1
                held.ready.append(message)
                continue
            else:
                held.take(message, _resource(message), now)
            blocked = held.is_blocked
        if held is not None and last is not None:
            lasts[held.partition] = last
        for place, end in lasts.items():
            if (new := self._trails[place].read(end)) is not None:
                self._epochs.setdefault(place, new)
        return events

    def new_epochs(self) -> dict[LogPartition, NewEpoch]:
        """Return, once, where another leader has written what was read than what was read before."""
        found, self._epochs = self._epochs, {}
        return found

    def anchors(self, positions: Mapping[LogPartition, int]) -> dict[LogPartition, Anchor]:
        """Return which record lies below each position, as far as one was seen."""
        found = {place: self._trails[place].below(position) for place, position in positions.items()}
        return {place: one for place, one in found.items() if one is not None}

    def go_back(self) -> bool:
        """True if some partition is to be read again from where its reader stands now: it had too much that waits."""
        back = False
        for partition, held in self.partitions.items():
            if held.untaken_from is None:
                continue
            at = f"{partition.topic}[{partition.partition}]@{held.untaken_from}"
            if held.go_back():
                back = True
                self._behind.discard(partition)
                log.info("reading again what was not taken in", at=at)
            elif partition not in self._behind:
                self._behind.add(partition)
                log.warning("the whole partition waits: too many ranges of undecided captures", at=at)
        return back

    def derive(self, record: Record, topic: str, partition: int) -> LogMessage | None:
        """Return the message of a record; None for an outcome marker. The hot path: once for every record."""
        capture = fault = None
        try:
            headers: Headers = headers_of(record) or []
        except SystemError as error:
            raise_limit(error.__cause__ or error)
            # The client cannot read a header name that is not UTF-8, and crashes if asked a second time.
            headers = []
            fault = MessageRejected("decode", "headers", "a header's name is not UTF-8; no header of it can be read")
        fields = dict(headers)
        key = record.key()
        value = record.value()
        offset: int = record.offset()  # type: ignore[assignment]
        if CAPTURE in fields:
            if is_marker(key, fields):
                return None
            capture, fault = _capture(fields[CAPTURE])
        if len(headers) > HEADERS_MAX:
            fault = MessageRejected(
                "decode", "headers", f"{len(headers)} headers are more than the {HEADERS_MAX} that a message may have"
            )
            headers = headers[:HEADERS_MAX]
        if capture is None and not LOG_ONLY_HEADERS.isdisjoint(fields):
            headers = outgoing(headers)  # a stranger's claim to belong to one of our transactions ends here
        topic_raw = self._topic_raw.get(topic) or topic.encode()  # a recovery may read what was taken out of the route
        try:
            digest = self._first_rule(fields, topic_raw, value)
            if digest is None:
                digest = self._identify(fields, topic_raw, value, topic, partition, offset)
        except MessageRejected as unread:
            # Its identity is in a value that nothing can read for now: a dead letter, under its place.
            fault = unread
            digest = self._by_position(topic, partition, offset)
        return _new(
            LogMessage,
            (
                topic,
                partition,
                offset,
                key,
                value,
                headers,
                digest,
                content_digest(key, value),
                self._lane(fields, topic_raw, key, digest, partition),
                capture,
                record.timestamp()[1],
                fault,
            ),
        )

    def ready(self) -> int:
        """How many messages could be handed on now."""
        return sum(len(held.ready) for held in self.partitions.values())

    def ready_bytes(self) -> int:
        """How many bytes of messages could be handed on now."""
        return sum(held.ready_bytes() for held in self.partitions.values())

    def held(self) -> int:
        """How many messages wait behind undecided captures."""
        return sum(held.held for held in self.partitions.values())

    def lanes_blocked(self) -> int:
        """How many lanes wait."""
        return sum(held.lanes_blocked for held in self.partitions.values())

    def take_ready(self, limit: int) -> list[LogMessage]:
        """Hand on up to ``limit`` messages, partition by partition, each lane in its order."""
        taken: list[LogMessage] = []
        for place, held in self.partitions.items():
            if len(taken) >= limit:
                break
            if held.ready:
                taken += held.take_ready(limit - len(taken))
                self._trails[place].hand_on(taken[-1])
        return taken

    def is_numbered(self) -> bool:
        """Has any partition shown a captured message, or the marker of one, since the start?"""
        return any(held.numbered for held in self.partitions.values())

    def take_aborted(self) -> dict[LogPartition, Aborted]:
        """Hand on the numbers of aborted captures, for the batch that moves the positions past them."""
        return {partition: held.take_aborted() for partition, held in self.partitions.items() if held.numbered}

    def positions(self) -> dict[LogPartition, int]:
        """Per partition, the offset below which everything was handed on or needs no delivery."""
        return {partition: held.position() for partition, held in self.partitions.items()}

    def reached(self) -> dict[LogPartition, int]:
        """Per partition, where the reader stands."""
        return {partition: held.read_to for partition, held in self.partitions.items()}

    def passed(self, partition: LogPartition, offset: int) -> None:
        """The reader stands at ``offset``: an end of partition also passes transaction markers."""
        held = self.partitions.get(partition)
        if held is not None:
            held.read_to = max(held.read_to, offset)

    def due(self, now: float) -> list[Hold]:
        """Return the captures whose resource must be asked now."""
        return [hold for held in self.partitions.values() for hold in held.due(now)]

    def decide(self, capture: bytes, resource: ResourceName | None, decision: Decision) -> None:
        """A resource has answered: the capture ended so, in whatever partition its messages name that resource.

        What names another one waits for that: whoever may write the log could else have a stranger's database say that
        a capture was aborted.
        """
        for held in self._waiting_for(capture, resource):
            held.decide(capture, decision)

    def postpone(
        self, capture: bytes, resource: ResourceName | None, waiting: Waiting, now: float, detail: str = ""
    ) -> None:
        """A resource gave no decision."""
        for held in self._waiting_for(capture, resource):
            held.postpone(capture, waiting, now, detail)

    def _waiting_for(self, capture: bytes, resource: ResourceName | None) -> list[PartitionHolds]:
        return [held for held in self.partitions.values() if held.waits_for(capture, resource)]

    def _identify(
        self, fields: Mapping[str, bytes], topic: bytes, value: bytes | None, name: str, partition: int, offset: int
    ) -> bytes:
        for rule in self._rules[1:]:
            found = rule(fields, topic, value)
            if found is not None:
                return found
        return self._by_position(name, partition, offset)

    def _by_position(self, topic: str, partition: int, offset: int) -> bytes:
        """Return the digest of a place; of a topic that the route reads no more the id is not known, and none is like it."""
        return position_digest(self._topic_ids.get(topic, b""), partition, offset)

    def _mark(self, held: PartitionHolds, record: Record, now: float) -> None:
        held.read_to = (record.offset() or 0) + 1
        headers = headers_of(record) or []
        marker = decode_marker(record.key(), record.value(), headers)
        before = held.alarms
        if marker is None or marker.forged:
            held.forged()
        elif marker.proved:
            held.mark(marker.capture, Decision.COMMITTED, trusted=True, now=now)
        else:
            resource = held.resource_of(marker.capture)
            trusted = resource is not None and resource.name not in self._askable and unit_of(resource) is None
            held.mark(marker.capture, Decision.ABORTED, trusted=trusted, now=now, claims=marker.runs)
        if held.alarms != before and held.alarms.bit_count() == 1:
            # At 1, 2, 4, 8 and so on: whoever writes false markers must not fill the log as well.
            place = f"{held.partition.topic}[{held.partition.partition}]@{record.offset()}"
            log.error("outcome marker ignored", reason="false or contradicting", at=place, seen=held.alarms)


def _resource(message: LogMessage) -> ResourceName | None:
    return ResourceName.decode(message.header(RESOURCE) or b"") if message.capture is not None else None


def _capture(raw: bytes | None) -> tuple[bytes | None, MessageRejected | None]:
    """Read the capture header; a header's value may also be null."""
    capture = capture_of(raw)
    if capture is None:
        return None, MessageRejected("decode", "capture", f"the header {CAPTURE} is not {CAPTURE_HEX_CHARS} hex characters")
    return capture, None
