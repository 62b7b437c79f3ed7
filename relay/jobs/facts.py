"""Records become facts: the project's own decoders run in Python over Arrow batches, everything else in the JVM.

Digests are those of ``relay.message.identity``, monitor pages and markers are read by the codecs of ``schemas/``,
so that this audit and ``relay verify`` mean the same message by the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from relay.audit import letters
from relay.audit.stored_ids import AsStored
from relay.jobs.records import OFFSETS, PLACE_SHIFT, place
from relay.message import identity
from relay.message.envelope import (
    CAPTURE,
    DEAD_CODE,
    DEAD_REPLAY,
    DEAD_ROUTE,
    ID,
    OUT_DIGEST,
    OUT_INSTANCE,
    OUT_N,
    OUTCOME_TYPE,
    REDRIVEN,
    RESOURCE,
    SOURCE,
    TYPE,
    UNTOLD_CODE,
)
from relay.message.record import LogPartition
from relay.message.schemas import UnknownRecord, codec
from relay.monitor import entries

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

    Batches = Iterable[pyarrow.RecordBatch]

MESSAGE: Final = 0
COMMITTED: Final = 1
ABORTED: Final = 2
BROKEN_MARKER: Final = 3
"""What a record of the log is: a message, or a marker that proves a commit, hints at an abort, or proves nothing."""

_BROKERS_TIME: Final = 1
"""Kafka's number for a time that the broker gave."""
_RULED: Final = "ruled_"
FACTS: Final = (
    "pos long, at timestamp, content long, lane long, shared long, capture binary, resource binary, digest binary, kind byte, respelled boolean"
)
EFFECTS: Final = "pos long, at timestamp, content long, digest binary"
PAGE_ROWS: Final = (
    "digest binary, replay short, entry_order long, outcome short, log_topic string, log_partition int, log_offset long,"
    " destination long, transaction string, at long, home int"
)

PAGE_MARKS: Final = "instance string, n long, at long"


@dataclass(frozen=True)
class Rules:
    """What decides identity and lane of a route's messages; it travels to the executors."""

    identity: tuple[str, ...]
    order: str
    topic_ids: Mapping[str, bytes]
    as_stored: AsStored | None = None
    """How an id reads in the table, where that is not as it was written."""

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers that the identity rules read, apart from id and source."""
        return tuple(rule.partition(":")[2] for rule in self.identity if rule.startswith("header:"))

    @property
    def reads_value(self) -> bool:
        """Does a rule read the value?"""
        return any(rule.startswith("json:") for rule in self.identity)


def log_facts(records: DataFrame, partitions: Sequence[LogPartition], rules: Rules) -> DataFrame:
    """Return a fact for each record of the log: messages with digest and lane, markers with what they prove."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    header = _headers()
    topic = sql.col("topic").cast("binary")
    source = sql.coalesce(_filled(header[SOURCE]), topic)
    lane = {"publisher": source, "key": sql.coalesce("key", sql.lit(b""))}.get(rules.order, sql.lit(b""))
    capture = header[CAPTURE].cast("string")
    of_capture = (capture == sql.lower(sql.hex("key"))) & (sql.length("key") == identity.DIGEST_BYTES)
    of_marker = (header[TYPE].cast("string") == OUTCOME_TYPE) & of_capture
    marker = sql.coalesce(of_marker, sql.lit(False))  # the type alone says nothing: see capture/outcomes
    marker_value = sql.when(marker, sql.col("value"))
    chosen = records.select(
        place(partitions).alias("pos"),
        sql.col("timestamp").alias("at"),
        _content().alias("content"),
        sql.xxhash64("topic", "partition", lane).alias("lane"),
        sql.when(sql.length(header[ID]) > 0, sql.xxhash64(header[ID])).alias("shared"),
        sql.when(capture.rlike("^[0-9a-fA-F]{32}$"), sql.unhex(capture)).alias("capture"),
        header[RESOURCE].alias("resource"),
        sql.when(marker, sql.col("key")).alias("marker_key"),
        (sql.coalesce(marker_value, sql.lit(b"")) if not rules.reads_value else sql.col("value")).alias(
            "value"
        ),
        marker.alias("marker"),
        *_identifying(header, rules),
    )
    return chosen.mapInArrow(_facts_of(rules, tuple(partitions)), FACTS)


def output_effects(
    records: DataFrame, partitions: Sequence[LogPartition], rules: Rules, foreign: Iterable[bytes]
) -> DataFrame:
    """Return an effect for each record of an output topic, without those of other routes' producer instances."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    header = _headers()
    strangers = [instance.hex() for instance in foreign]
    if strangers:
        writer = sql.coalesce(header[OUT_INSTANCE].cast("string"), sql.lit(""))
        records = records.where(~writer.isin(strangers))
    chosen = records.select(
        place(partitions).alias("pos"),
        sql.col("timestamp").alias("at"),
        _content().alias("content"),
        header[OUT_DIGEST].cast("string").alias("own"),
        *([sql.col("value")] if rules.reads_value else []),
        *_identifying(header, rules),
    )
    return chosen.mapInArrow(_effects_of(rules, tuple(partitions)), EFFECTS)


def transaction_marks(records: DataFrame, partitions: Sequence[LogPartition]) -> DataFrame:
    """Return (pos, instance in hex, n) of each record of an output topic that names its transaction."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    header = _headers()
    instance, number = header[OUT_INSTANCE].cast("string"), header[OUT_N].cast("string")
    marks = records.select(place(partitions).alias("pos"), instance.alias("instance"), number.alias("number"))
    named = marks.where(sql.col("number").rlike("^[0-9]{1,18}$"))
    return named.select("pos", "instance", sql.col("number").cast("long").alias("n"))


def page_marks(records: DataFrame) -> DataFrame:
    """Return (instance in hex, n, at) of the pages that a delivery transaction wrote itself, ``at`` by the broker, else -1."""
    pages = records.where("substring(key, 1, 1) = X'65' and value is not null")
    return pages.select("key", "value", by_broker().alias("at")).mapInArrow(_marks_of, PAGE_MARKS)


def dead_letters(records: DataFrame, route: str) -> DataFrame:
    """Return the digests of a route's dead letters, each once, and whether a redrive took them back (``redriven``).

    ``pos`` is the number of the redrive in which it died, null where its letter says that nobody can tell.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    key = sql.coalesce(sql.col("key"), sql.lit(b""))
    is_named = key.cast("string").rlike(rf"\A{letters.HEX}\z")
    named = sql.when(is_named, sql.unhex(key.cast("string"))).otherwise(sql.concat(sql.lit(b"?"), key))  # else no message's digest
    mine = records.where(_headers()[DEAD_ROUTE].cast("string") == route)
    code = sql.coalesce(_headers()[DEAD_CODE].cast("string"), sql.lit(""))
    said = _headers()[DEAD_REPLAY].cast("string")
    number = sql.when(said.rlike(r"\A[0-9]{1,3}\z"), said.cast("int")).otherwise(0)
    rows = mine.select(named.alias("digest"), code.alias("code"), number.alias("number"))
    is_death = sql.col("code") != UNTOLD_CODE
    taken_back = sql.max(sql.when(sql.col("code") == REDRIVEN, sql.col("number")))
    letter = sql.max(sql.when(sql.col("code") != REDRIVEN, sql.struct("number", is_death.alias("is_death"))))
    stands = sql.coalesce(letter["number"] >= sql.coalesce(taken_back, sql.lit(0)), sql.lit(False))
    died = sql.when(stands & letter["is_death"], letter["number"].cast("long"))
    return rows.groupBy("digest").agg((~stands).alias("redriven"), died.alias("pos"))


def page_rows(
    records: DataFrame, partitions: Sequence[LogPartition], ends: Ends, wanted: frozenset[bytes] | None = None
) -> DataFrame:
    """Return the rows of the monitor's pages that count (of wanted digests, if given), with their order in the monitor.

    ``at`` is when the broker took a page that its own delivery transaction wrote, in milliseconds, else -1.
    """
    pages = records.where("substring(key, 1, 1) = X'65' and value is not null")
    return pages.select(place(partitions).alias("pos"), "key", "value", "partition", by_broker().alias("at")).mapInArrow(
        _rows_of(ends, wanted), PAGE_ROWS
    )


@dataclass(frozen=True)
class Ends:
    """How the sealed transactions of a monitor ended, as far as begins and seals tell; small, and kept whole."""

    begun: dict[bytes, int] = field(default_factory=dict)
    sealed: dict[bytes, int] = field(default_factory=dict)
    settled: set[tuple[bytes, int]] = field(default_factory=set)

    def take(self, entry: entries.Entry) -> None:
        """Note a begin, a seal or a settle seal."""
        if isinstance(entry, entries.Begin):
            self.begun[entry.instance] = max(entry.n, self.begun.get(entry.instance, -1))
        elif isinstance(entry, entries.Seal):
            self.sealed[entry.instance] = max(entry.n, self.sealed.get(entry.instance, -1))
        elif isinstance(entry, entries.SettleSeal):
            self.settled.add((entry.instance, entry.n))

    def proves(self, page: entries.Page) -> bool:
        """Does this page count: by itself, or since its transaction was sealed or followed by a later one?"""
        if page.proof is not entries.Proof.SEALED:
            return True
        if (page.instance, page.n) in self.settled:
            return False
        return page.n <= self.sealed.get(page.instance, -1) or page.n < self.begun.get(page.instance, -1)


def by_broker() -> Column:
    """When the broker took a record, in milliseconds; -1 where its writer gave the time."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    return sql.when(sql.col("timestampType") == _BROKERS_TIME, sql.unix_millis("timestamp")).otherwise(sql.lit(-1))


def _headers() -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    # The JVM puts this character for what is not UTF-8; of such a record's headers the other clients can read none.
    unread = sql.exists("headers", lambda header: header["key"].contains("\N{REPLACEMENT CHARACTER}"))
    return sql.map_from_entries(sql.when(~unread, sql.col("headers")))


def _filled(column: Column) -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    return sql.when(sql.length(column) > 0, column)


def _content() -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    # Of where the key ends, and of whether there is any, as well.
    empty, none = sql.lit(b""), sql.lit("-")
    lengths = [sql.coalesce(sql.length(name).cast("string"), none).cast("binary") for name in ("key", "value")]
    return sql.crc32(sql.concat(*lengths, sql.coalesce("key", empty), sql.coalesce("value", empty)))


def _identifying(header: Column, rules: Rules) -> list[Column]:
    found = [header[ID].alias("id"), header[SOURCE].alias("source")]
    return found + [header[name].alias(f"{_RULED}{number}") for number, name in enumerate(rules.headers)]


def _identified(
    batch: pyarrow.RecordBatch,
    rules: Rules,
    partitions: Sequence[LogPartition],
    fallback: Callable[[int, LogPartition, int], bytes],
    *,
    several: bool,
) -> list[bytes]:
    """Return each row's digest by the first rule that finds something, else by ``fallback(row, partition, offset)``.

    ``several``: a record without a source may come from more than one log topic, so that no rule may be asked.
    """
    applied = identity.rules(rules.identity)
    places, identifiers, sources = (batch.column(name).to_pylist() for name in ("pos", "id", "source"))
    extra = [
        (name, batch.column(f"{_RULED}{number}").to_pylist()) for number, name in enumerate(rules.headers)
    ]
    values = batch.column("value").to_pylist() if rules.reads_value else [None] * batch.num_rows
    only = next(iter(rules.topic_ids))
    names = [(one.topic if one.topic in rules.topic_ids else only).encode() for one in partitions]
    digests: list[bytes] = []
    for row, (pos, identifier, source) in enumerate(zip(places, identifiers, sources, strict=True)):
        fields = {ID: identifier, SOURCE: source}
        for name, found in extra:
            if found[row] is not None:
                fields[name] = found[row]
        digest = None
        if not several or source:
            for rule in applied:
                digest = rule(fields, names[pos >> PLACE_SHIFT], values[row])
                if digest is not None:
                    break
        digests.append(digest or fallback(row, partitions[pos >> PLACE_SHIFT], pos & OFFSETS))
    return digests


def _facts_of(
    rules: Rules, partitions: Sequence[LogPartition]
) -> Callable[[Batches], Iterator[pyarrow.RecordBatch]]:
    def facts(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        import numpy as np  # noqa: PLC0415 - on the executor; comes with Arrow's users
        import pyarrow  # noqa: PLC0415 - on the executor

        def by_position(_row: int, place: LogPartition, offset: int) -> bytes:
            return identity.position_digest(rules.topic_ids[place.topic], place.partition, offset)

        for batch in batches:
            digests = _identified(batch, rules, partitions, by_position, several=False)
            captures = batch.column("capture")
            kinds = pyarrow.array(np.zeros(batch.num_rows, np.int8))
            if batch.column("marker").true_count:
                captures, kinds = _outcomes(batch)
            kept = [batch.column(name) for name in ("pos", "at", "content", "lane", "shared")]
            respelled = pyarrow.array(_respelled(batch, rules.as_stored), pyarrow.bool_())
            yield pyarrow.RecordBatch.from_arrays(
                [*kept, captures, batch.column("resource"), pyarrow.array(digests, pyarrow.binary()), kinds, respelled],
                ["pos", "at", "content", "lane", "shared", "capture", "resource", "digest", "kind", "respelled"],
            )

    return facts


def _respelled(batch: pyarrow.RecordBatch, as_stored: AsStored | None) -> list[bool]:
    """Return of which rows a table has the id in another spelling, so that its name is not the log's."""
    if as_stored is None:
        return [False] * batch.num_rows
    texts = ((raw or b"").decode("utf-8", "replace") for raw in batch.column("id").to_pylist())
    return [bool(text) and as_stored(text) != text for text in texts]


def _outcomes(batch: pyarrow.RecordBatch) -> tuple[pyarrow.Array, pyarrow.Array]:
    """Return capture and kind of each row, markers read."""
    import pyarrow  # noqa: PLC0415 - on the executor

    captures, kinds = batch.column("capture").to_pylist(), [MESSAGE] * batch.num_rows
    markers = zip(*(batch.column(name).to_pylist() for name in ("marker", "marker_key", "value")), strict=True)
    for row, (marker, key, value) in enumerate(markers):
        if marker:
            kinds[row], captures[row] = _outcome(key, value)
    return pyarrow.array(captures, pyarrow.binary()), pyarrow.array(kinds, pyarrow.int8())


def _outcome(key: bytes | None, value: bytes | None) -> tuple[int, bytes | None]:
    """Read a marker: a committed one counts only if its nonce is the capture's, since anyone may write to the log."""
    try:
        record = codec("outcome").decode(value or b"")
    except UnknownRecord:
        return BROKEN_MARKER, None
    capture: bytes = record["capture"]
    if capture != key:
        return BROKEN_MARKER, None
    if record["outcome"] == "ABORTED":
        return ABORTED, capture
    proven = record["nonce"] and identity.capture_id(record["nonce"]) == capture
    return (COMMITTED, capture) if proven else (BROKEN_MARKER, None)


def _effects_of(
    rules: Rules, partitions: Sequence[LogPartition]
) -> Callable[[Batches], Iterator[pyarrow.RecordBatch]]:
    def effects(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow  # noqa: PLC0415 - on the executor

        for batch in batches:
            own = batch.column("own")

            def by_relay(row: int, place: LogPartition, offset: int, own: pyarrow.Array = own) -> bytes:
                try:
                    return bytes.fromhex(own[row].as_py() or "x")
                except ValueError:
                    return identity.digest(b"?", f"{place.topic}/{place.partition}/{offset}".encode())

            digests = _identified(batch, rules, partitions, by_relay, several=len(rules.topic_ids) > 1)
            kept = [batch.column(name) for name in ("pos", "at", "content")]
            yield pyarrow.RecordBatch.from_arrays(
                [*kept, pyarrow.array(digests, pyarrow.binary())], ["pos", "at", "content", "digest"]
            )

    return effects


def _rows_of(
    ends: Ends, wanted: frozenset[bytes] | None
) -> Callable[[Batches], Iterator[pyarrow.RecordBatch]]:
    def rows(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for pos, key, value, home, at in zip(
                *(batch.column(name).to_pylist() for name in ("pos", "key", "value", "partition", "at")), strict=True
            ):
                try:
                    page = entries.decode(key, value)
                except UnknownRecord:
                    continue  # counted on the driver
                if isinstance(page, entries.Page) and ends.proves(page):
                    chosen = [
                        row for row, digest in enumerate(_digests(page)) if wanted is None or digest in wanted
                    ]
                    if chosen:
                        yield _arrow_rows(pos, entries.select(page, chosen), chosen, home, at)

    return rows


def _marks_of(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow  # noqa: PLC0415 - on the executor

    for batch in batches:
        marks: list[dict[str, str | int]] = []
        for key, value, at in zip(*(batch.column(name).to_pylist() for name in ("key", "value", "at")), strict=True):
            try:
                page = entries.decode(key, value)
            except UnknownRecord:
                continue  # counted on the driver
            if isinstance(page, entries.Page) and page.recovery is None:
                marks.append({"instance": page.instance.hex(), "n": page.n, "at": at})
        schema = pyarrow.schema([("instance", pyarrow.string()), ("n", pyarrow.int64()), ("at", pyarrow.int64())])
        yield pyarrow.RecordBatch.from_pylist(marks, schema)


def _digests(page: entries.Page) -> list[bytes]:
    width = identity.DIGEST_BYTES
    return [page.digests[i : i + width] for i in range(0, page.rows * width, width)]


def _arrow_rows(pos: int, page: entries.Page, numbers: list[int], home: int, at: int) -> pyarrow.RecordBatch:
    """Return the rows of a page, which ``numbers`` were theirs in the page as it was written."""
    import numpy as np  # noqa: PLC0415 - on the executor; comes with Arrow's users
    import pyarrow  # noqa: PLC0415 - on the executor

    rows = page.rows
    known = -1 if page.recovery is not None else page.n
    return pyarrow.RecordBatch.from_pydict(
        {
            "digest": pyarrow.array(_digests(page), pyarrow.binary()),
            "replay": np.frombuffer(page.replays or bytes(rows), np.uint8).astype(np.int16),
            # A page has at most 4,096 rows, so the row fits below the offset; a digest stays in one partition.
            "entry_order": np.array(numbers, np.int64) + ((pos & OFFSETS) << 12),
            "outcome": np.frombuffer(page.outcomes, np.uint8).astype(np.int16),
            "log_topic": [page.topic] * rows,
            "log_partition": np.full(rows, page.partition, np.int32),
            "log_offset": np.array(page.offsets, np.int64),
            "destination": np.array(page.destinations or [-1] * rows, np.int64),
            "transaction": [f"{page.instance.hex()}/{page.n}" if known >= 0 else None] * rows,
            "at": np.full(rows, at if known >= 0 else -1, np.int64),
            "home": np.full(rows, home, np.int32),
        }
    )
