"""Rows become records: Arrow's columns in, whole batches of CloudEvents in Kafka binary mode out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from relay.kafka.bulk import BulkRecord
from relay.message import envelope
from relay.message.envelope import Headers
from relay.message.errors import ConfigError
from relay.message.owned_topics import refuse_own_topic
from relay.message.queue_headers import READERS, refusal
from relay.message.record import LogPartition
from relay.spark.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

VALUE: Final = "value"
KEY: Final = "key"
HEADERS: Final = "headers"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
ATTRIBUTES: Final[Mapping[str, str]] = {
    "id": envelope.ID,
    "source": envelope.SOURCE,
    "type": envelope.TYPE,
    "subject": envelope.SUBJECT,
    "time": envelope.TIME,
    "sequence": envelope.SEQUENCE,
    "partitionkey": envelope.PARTITION_KEY,
    "contenttype": envelope.CONTENT_TYPE,
}
"""Column -> header."""
_BYTES: Final = ("binary", "string")
_TEXT: Final = ("string",)
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    VALUE: _BYTES,
    KEY: _BYTES,
    HEADERS: ("array<struct<key:string,value:binary>>",),
    TOPIC: _TEXT,
    PARTITION: ("int",),
    **dict.fromkeys(ATTRIBUTES, _TEXT),
    "time": ("string", "timestamp"),
    "sequence": ("string", "int", "bigint"),
}
_OURS: Final = envelope.LOG_ONLY_HEADERS
_NAMES: Final = frozenset(name for name, header in ATTRIBUTES.items() if header in READERS)
"""Columns by which queues name a message."""


class Labels(NamedTuple):
    """What every row of one attempt carries: its capture and resource, and the task's number among its siblings."""

    capture: bytes
    resource: bytes
    source: bytes
    task: int


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise ConfigError for a column that is unknown, missing or of another type, with the remedy."""
    for field in schema.fields:
        allowed, found = _TYPES.get(field.name), field.dataType.simpleString()
        if allowed is None:
            raise ConfigError(
                f"column {field.name}: not one that is written; leave it out, or put it into value (to_json). The columns "
                f"are {', '.join(_TYPES)}"
            )
        if found not in allowed:
            raise ConfigError(f"column {field.name} is {found}; cast it to {' or '.join(allowed)}")
    names = schema.fieldNames()
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise ConfigError(f"column {twice} is there more than once; select the one that is meant (a join keeps those of both sides)")
    if VALUE not in names:
        raise ConfigError("column value is missing: it is the message (binary or string)")
    if TOPIC not in names and options.topic is None:
        raise ConfigError('no topic is given: add option("topic", NAME), or a column topic')
    if options.topic is not None:
        refuse_own_topic(options.relay, options.topic)


class RowEncoder:
    """Encodes the batches of one attempt and notes where they go. ``counts`` tells a topic's partitions."""

    def __init__(self, options: WriteOptions, labels: Labels, counts: Callable[[str], int]) -> None:
        self._options = options
        self._labels = labels
        self._counts = counts
        self._id_prefix = labels.capture.hex().encode()
        self.rows = 0
        self.places: set[LogPartition] = set()

    def records(self, batch: pa.RecordBatch) -> Iterator[BulkRecord]:
        """Return the records of a batch, in its order."""
        count = batch.num_rows
        columns = {name: _values(batch, name) for name in batch.schema.names}
        keys = columns.get(KEY) or [None] * count
        topics = self._topics(columns.get(TOPIC), count)
        partitions = self._partitions(topics, keys, columns.get(PARTITION))
        headers = self._headers(columns, count)
        self.rows += count
        return zip(topics, partitions, keys, columns[VALUE], headers, strict=True)

    def _topics(self, given: list[str | None] | None, count: int) -> list[str]:
        default = self._options.topic
        if given is None:
            assert default is not None, "the schema was checked"
            return [default] * count
        topics = [topic or default for topic in given]
        if None in topics:
            raise ConfigError('column topic is null in a row and there is no option("topic", NAME) for it')
        return topics  # type: ignore[return-value]

    def _partitions(
        self, topics: Sequence[str], keys: Sequence[bytes | None], given: list[int | None] | None
    ) -> list[int]:
        """By column, else as `publish` places a key; a row without a key goes where its task's other rows go."""
        counts = {topic: self._counts(topic) for topic in set(topics)}
        if len(counts) == 1:
            one = next(iter(counts.values()))
            alone = self._labels.task % one
            found = [alone if key is None else crc32(key) % one for key in keys]
        else:
            task = self._labels.task
            found = [
                (task if key is None else crc32(key)) % counts[topic]
                for topic, key in zip(topics, keys, strict=True)
            ]
        if given is not None:
            found = [other if number is None else number for number, other in zip(given, found, strict=True)]
        seen = set(zip(topics, found, strict=True))
        for topic, number in seen:
            if not 0 <= number < counts[topic]:
                raise ConfigError(
                    f"column partition is {number}, but topic {topic} has {counts[topic]} partitions"
                )
        self.places.update(LogPartition(topic, number) for topic, number in seen)
        return found

    def _headers(self, columns: Mapping[str, list[Any]], count: int) -> Iterator[Headers] | list[Headers]:
        options, labels = self._options, self._labels
        defaults = {
            envelope.SOURCE: labels.source,
            envelope.TYPE: options.type.encode(),
            envelope.CONTENT_TYPE: options.content_type.encode() if options.content_type else None,
        }
        first: Headers = [
            (envelope.SPECVERSION, b"1.0"),
            (envelope.CAPTURE, self._id_prefix),
            (envelope.RESOURCE, labels.resource),
        ]
        given = {ATTRIBUTES[name]: values for name, values in columns.items() if name in ATTRIBUTES}
        first += [
            (name, value) for name, value in defaults.items() if value is not None and name not in given
        ]
        weak = frozenset({*defaults, envelope.ID} - given.keys())
        if envelope.ID not in given:
            given[envelope.ID] = [
                b"%s-%d" % (self._id_prefix, n) for n in range(self.rows, self.rows + count)
            ]
        elif None in given[envelope.ID] or b"" in given[envelope.ID]:
            raise ConfigError("column id is null or empty in a row; give each row an id, or leave the column out")
        has_gaps = any(None in values for values in given.values())
        pairs = [zip(repeat(name), values) for name, values in given.items()]
        made = [first + list(row) for row in zip(*pairs, strict=True)]
        if has_gaps:
            made = [_without_gaps(row, defaults) for row in made]
        if HEADERS in columns:
            made = [_joined(extra, row, weak) for extra, row in zip(columns[HEADERS], made, strict=True)]
        return made


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column as Python values; text as its UTF-8 bytes where a header or a payload is made of it."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by Spark's worker already
    import pyarrow.compute as pc  # noqa: PLC0415

    column = batch.column(name)
    if name in (TOPIC, PARTITION, HEADERS):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column.cast(pa.timestamp("us", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
    elif pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary())
    if name in _NAMES and _holds_nul(column):
        raise ConfigError(f"column {name} holds a NUL in a row, which neither queues nor databases take; replace it")
    return column.to_pylist()  # type: ignore[no-any-return]


def _holds_nul(column: pa.BinaryArray) -> bool:
    """Has a row's value a NUL? All that the column's memory holds is searched first, much faster than row by row."""
    import pyarrow.compute as pc  # noqa: PLC0415

    held = column.buffers()[2]
    return held is not None and b"\0" in held.to_pybytes() and bool(pc.any(pc.match_substring(column, "\0")).as_py())


def _without_gaps(headers: Headers, defaults: Mapping[str, bytes | None]) -> Headers:
    filled = [(name, defaults.get(name) if value is None else value) for name, value in headers]
    return [(name, value) for name, value in filled if value is not None]


def _joined(extra: Sequence[Mapping[str, Any] | None] | None, own: Headers, weak: frozenset[str]) -> Headers:
    """Add a row's own headers: they replace what no column gives (``weak``) and nothing else that the relay writes.

    One that is null or has no name says nothing, nor does one without a value replace any.
    Raises ConfigError for one that no queue could read, as `publish` does.
    """
    if not extra:
        return own
    firm = {name for name, _ in own if name not in weak}
    named = [(one["key"], one["value"]) for one in extra if one is not None and one["key"] is not None]
    if (cut := next((name for name, _ in named if "\0" in name), None)) is not None:
        raise ConfigError(f"column headers: {cut!r} is no name of a header: the client would cut it at the NUL; leave that out")
    theirs = [
        (name, value) for name, value in named
        if name not in firm and name not in _OURS and not (value is None and name in weak)
    ]  # fmt: skip
    for name, value in theirs:
        if name in READERS and value is not None and (refused := refusal(name, value)) is not None:
            raise ConfigError(f"column headers: {refused}")
    replaced = {name for name, _ in theirs}
    return [header for header in own if header[0] not in replaced] + theirs
