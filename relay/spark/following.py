"""The stream reader of ``format("relay")``: per partition, the prefix in which every capture is decided, and no more."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from relay.capture.decisions import UnitDecisions, unit_of
from relay.capture.outcomes import decode_marker, is_marker
from relay.capture.resolver import State
from relay.config.timing import Timing
from relay.kafka import settings
from relay.kafka.decisions import DecisionLog
from relay.kafka.failures import MISSING, kafka_error
from relay.kafka.reading import PartitionReader
from relay.message import envelope
from relay.message.envelope import Headers, ResourceName, outgoing
from relay.message.errors import ConfigError, Unreachable
from relay.message.record import LogPartition, headers_if_any
from relay.spark.options import WriteOptions, check_topics, no_relay
from relay.world import clock

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary,"
    " headers array<struct<key:string,value:binary>>, source string, id string, type string"
)
DEADLINE_S: Final = 30.0
OUTCOMES_REMEMBERED: Final = 100_000
ROWS_AT_ONCE: Final = 10_000
_MILLIS_MAX: Final = (2**63 - 1) // 1000


def decision_log(relay: str, kafka: Mapping[str, str]) -> DecisionLog:
    """Return a reader of the relay's decisions."""
    return DecisionLog(lambda committed: _reader(relay, kafka, committed=committed), relay)


def decisions_now(log: DecisionLog, relay: str) -> UnitDecisions:
    """Return what is decided now. Raises as ``DecisionLog.decisions`` does, and ConfigError where there is no such relay."""
    try:
        return log.decisions()
    except Unreachable as away:
        reason = kafka_error(away)
        if reason is not None and reason.code() in MISSING:
            raise no_relay(relay) from away
        raise


def _reader(relay: str, kafka: Mapping[str, str], *, committed: bool) -> PartitionReader:
    given = settings.consumer(kafka, Timing(), f"{relay}.spark", log_level=0)
    return PartitionReader(given, committed=committed, clock=clock.monotonic, deadline_s=DEADLINE_S)


class Prefix:
    """What one partition has shown: which captures are still undecided, and since which offset. No I/O."""

    def __init__(self, start: int) -> None:
        self.read_to = start
        self._open: dict[bytes, tuple[int, ResourceName | None]] = {}
        self._ended: OrderedDict[bytes, bool] = OrderedDict()

    def take(
        self, offset: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> None:
        """Take a record in its order."""
        self.read_to = offset + 1
        ended = ended_by(key, value, headers)
        if ended is not None:
            self._end(*ended)
            return
        capture, resource = named_capture(headers)
        if capture is not None and capture not in self._ended:
            self._open.setdefault(capture, (offset, resource))

    def ask(self, decisions: UnitDecisions) -> None:
        """End the captures that the topic of decisions decides."""
        for capture, (_, resource) in list(self._open.items()):
            unit = unit_of(resource) if resource is not None else None
            if resource is not None and unit is not None:
                state = decisions.resolve(capture, unit, resource.uuid).state
                if state is not State.UNDECIDED:
                    self._end(capture, state is State.COMMITTED)

    def position(self) -> int:
        """Return the offset below which every capture is decided."""
        return min((offset for offset, _ in self._open.values()), default=self.read_to)

    def _end(self, capture: bytes, committed: bool) -> None:
        self._open.pop(capture, None)
        self._ended.setdefault(capture, committed)
        if len(self._ended) > OUTCOMES_REMEMBERED:
            self._ended.popitem(last=False)


def ended_by(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
) -> tuple[bytes, bool] | None:
    """Return the capture that a marker ends and how, if it may be believed without asking anybody.

    A committed one must prove itself. An aborted one of a database is the word of the log's writers; of a unit, only
    the decision counts.
    """
    marker = decode_marker(key, value, headers)
    if marker is None or marker.forged:
        return None
    resource = named_capture(headers)[1]
    if not marker.committed and resource is not None and unit_of(resource) is not None:
        return None
    return marker.capture, marker.committed


def named_capture(headers: Iterable[tuple[str, bytes]]) -> tuple[bytes | None, ResourceName | None]:
    """Return the capture and the resource that a record names; (None, None) for a plain one or one that is malformed."""
    fields = dict(headers)
    capture = envelope.capture_of(fields.get(envelope.CAPTURE))
    if capture is None:
        return None, None  # no capture has such a name, so none would ever end
    return capture, ResourceName.decode(fields.get(envelope.RESOURCE) or b"")


@dataclass
class Span(InputPartition):
    """Rows of one partition: messages in [first, end), their outcomes found in [first, seen)."""

    partition: int
    first: int
    end: int
    seen: int


class CommittedReader(DataSourceStreamReader):
    """Offsets are, for each partition, [position, scanned]: what lies below the first is decided by what lies below the
    second or by the topic of decisions. After a restart the driver reads the log once from its beginning."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._prefixes: dict[int, Prefix] | None = None
        self._log: DecisionLog | None = None
        self._source: PartitionReader | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the log's beginning."""
        return {str(number): [low, low] for number, (low, _) in self._watermarks().items()}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Read what came since, and return how far everything is decided. ConfigError if the log has lost what was read of it."""
        marks = self._watermarks()
        if self._prefixes is None:
            self._prefixes = {number: Prefix(low) for number, (low, _) in marks.items()}
        for number, (low, high) in marks.items():
            read_to = self._prefixes.setdefault(number, Prefix(low)).read_to
            if high < read_to:
                self._refuse_lost_end(number, read_to, self._reader().end_anew(self._place(number), read_to))
        ranges = {self._place(n): (prefix.read_to, marks[n][1]) for n, prefix in self._prefixes.items()}
        for records in self._reader().read(ranges):
            for record in records:
                self._prefixes[record.partition()].take(
                    record.offset(), record.key(), record.value(), headers_if_any(record)
                )
        if self._log is None:
            self._log = decision_log(self._options.relay, self._options.kafka)
        decisions = decisions_now(self._log, self._options.relay)
        for number, prefix in self._prefixes.items():
            prefix.read_to = max(prefix.read_to, marks[number][1])
            prefix.ask(decisions)
        return {str(number): [prefix.position(), prefix.read_to] for number, prefix in self._prefixes.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one task for each partition that moved. ConfigError if the log has lost what the first would read, or its end, or a batch
        was planned that goes back."""
        for number in {**start, **end}:
            self._refuse_going_back(int(number), start.get(number, [0, 0]), end.get(number, [0, 0]))
        spans = [
            Span(int(number), start.get(number, [0, 0])[0], position, seen)
            for number, (position, seen) in end.items()
            if start.get(number, [0, 0])[0] < position
        ]
        for span in spans:
            place = self._place(span.partition)
            low, _ = self._reader().watermarks(place)
            if span.first < low:
                raise ConfigError(
                    f'option("checkpointLocation", ..): the query stands at offset {span.first} of '
                    f"{place.topic}[{place.partition}], and the log begins at {low} by now: what lay between is gone unread. "
                    "Keep the topic longer, and begin anew with another checkpointLocation: its rows start with what the "
                    "log still has"
                )
        return spans

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages that count, in their order."""
        assert isinstance(partition, Span)
        options = self._options
        decisions = decisions_now(decision_log(options.relay, options.kafka), options.relay)
        held: deque[_Read] = deque()
        ended: dict[bytes, bool] = {}
        with _reader(options.relay, options.kafka, committed=True) as reader:
            for records in reader.read({self._place(partition.partition): (partition.first, partition.seen)}):
                for record in records:
                    headers = headers_if_any(record)
                    outcome = ended_by(record.key(), record.value(), headers)
                    if outcome is not None:
                        ended.setdefault(*outcome)
                    elif record.offset() < partition.end:
                        held.append((record, headers))
                # A first batch may be the whole log: no more of it is kept than waits for an outcome.
                yield from _batches(_decided(held, ended, decisions))
        yield from _batches([one for one in held if _counts(one[0].key(), one[1], ended, decisions)])

    def commit(self, end: dict[str, Any]) -> None:
        """Keep nothing: the query's checkpoint has the offsets."""

    def stop(self) -> None:
        """Leave."""
        for one in (self._source, self._log):
            if one is not None:
                one.close()

    def _watermarks(self) -> dict[int, tuple[int, int]]:
        topic = self._options.topic
        assert topic is not None, "the options were checked"
        count = check_topics(self._options, [topic])[topic]
        reader = self._reader()
        return {number: reader.watermarks(self._place(number)) for number in range(count)}

    def _refuse_lost_end(self, number: int, read_to: int, end: int) -> None:
        """Raise ConfigError if a partition ends before what was read of it: what is written there now would be passed over."""
        if end < read_to:
            place = self._place(number)
            raise ConfigError(
                f'option("checkpointLocation", ..): the query has read up to offset {read_to} of {place.topic}[{place.partition}], and the log '
                f"ends at {end}: it was deleted and created again, or has lost its end. Begin anew with another checkpointLocation"
            )

    def _refuse_going_back(self, number: int, start: Sequence[int], end: Sequence[int]) -> None:
        """Raise ConfigError for a batch that ends before it begins: the next one would give again what lies between.

        A reader that has just started knows of nothing read before, and Spark keeps what it tells before it asks for partitions.
        """
        if end[0] >= start[0] and end[1] >= start[1]:
            return
        place = self._place(number)
        self._refuse_lost_end(number, start[1], self._reader().end_anew(place, start[1]))
        raise ConfigError(
            f'option("checkpointLocation", ..): its last batch was planned by what a broker that was behind told of {place.topic}[{place.partition}] '
            f"({list(end)}, where the query stood at {list(start)}); the log has all that was read. Stop the query, delete the last file of "
            "offsets there, which has none of its name in commits, and start it again"
        )

    def _place(self, number: int) -> LogPartition:
        return LogPartition(self._options.topic or "", number)

    def _reader(self) -> PartitionReader:
        if self._source is None:
            self._source = _reader(self._options.relay, self._options.kafka, committed=True)
        return self._source


_Read = tuple[Any, Headers]
"""A record with its headers, which are asked for once."""


def _counts(
    key: bytes | None, headers: Headers, ended: Mapping[bytes, bool], decisions: UnitDecisions
) -> bool:
    if is_marker(key, dict(headers)):
        return False
    capture, resource = named_capture(headers)
    if capture is None:
        return envelope.CAPTURE not in dict(headers)
    if ended.get(capture, False):
        return True
    unit = unit_of(resource) if resource is not None else None
    return (
        resource is not None
        and unit is not None
        and decisions.resolve(capture, unit, resource.uuid).state is State.COMMITTED
    )


def _decided(held: deque[_Read], ended: Mapping[bytes, bool], decisions: UnitDecisions) -> list[_Read]:
    """Take from the front what is decided by now, and return what of it counts."""
    found = []
    while held and _is_decided(held[0][1], ended, decisions):
        one = held.popleft()
        if _counts(one[0].key(), one[1], ended, decisions):
            found.append(one)
    return found


def _is_decided(headers: Headers, ended: Mapping[bytes, bool], decisions: UnitDecisions) -> bool:
    """Is nothing further on going to tell more of a record with these headers than what is known by now?"""
    capture, resource = named_capture(headers)
    if capture is None or capture in ended:
        return True
    unit = unit_of(resource) if resource is not None else None
    return (
        resource is not None
        and unit is not None
        and decisions.resolve(capture, unit, resource.uuid).state is not State.UNDECIDED
    )


def _batches(read: Sequence[_Read]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - in the task

    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    for first in range(0, len(read), ROWS_AT_ONCE):
        part = [record for record, _ in read[first : first + ROWS_AT_ONCE]]
        found = [headers for _, headers in read[first : first + ROWS_AT_ONCE]]
        fields = [dict(one) for one in found]
        headers = [[{"key": k, "value": v} for k, v in outgoing(one)] for one in found]
        columns = {
            "topic": pa.array([record.topic() for record in part], pa.string()),
            "partition": pa.array([record.partition() for record in part], pa.int32()),
            "offset": pa.array([record.offset() for record in part], pa.int64()),
            "timestamp": pa.array([_micros(record.timestamp()[1]) for record in part], pa.timestamp("us", "UTC")),
            "key": pa.array([record.key() for record in part], pa.binary()),
            "value": pa.array([record.value() for record in part], pa.binary()),
            "headers": pa.array(headers, header),
            "source": _text(pa, [one.get(envelope.SOURCE) or record.topic().encode() for one, record in zip(fields, part, strict=True)]),
            "id": _text(pa, [one.get(envelope.ID) or None for one in fields]),
            "type": _text(pa, [one.get(envelope.TYPE) for one in fields]),
        }  # fmt: skip
        yield pa.record_batch(columns)


def _micros(at_ms: int) -> int | None:
    """Return a record's time in Spark's unit; None for one that it cannot hold: it is whatever a producer has said."""
    return at_ms * 1000 if abs(at_ms) <= _MILLIS_MAX else None


def _text(pa: Any, values: Sequence[bytes | None]) -> Any:
    return pa.array(
        [None if value is None else value.decode("utf-8", "replace") for value in values], pa.string()
    )
