"""A table route's effects and the order of their commits: rows, inbox and monitor, by the auditor's own readers.

One task streams a table in one snapshot, as ``relay verify`` does; what comes of it is spread over the executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from relay.audit import tables
from relay.audit.stored_ids import AsStored
from relay.config.model import RelayConfig, RouteConfig, TableDestination
from relay.message import identity
from relay.message.envelope import ID, SOURCE
from relay.message.errors import ConfigError
from relay.monitor.entries import DELIVERED

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 20_000
COMMITS: Final = "digest binary, applied long, transaction string"


def check(route: RouteConfig, to: TableDestination) -> None:
    """Refuse a table whose rows do not say by (source, id) which message they are."""
    mapped = set(to.columns.values())
    keyed = {to.columns[column] for column in to.key} if to.mode == "upsert" else {"ce:id"}
    plain = route.identity[0] == "cloudevents" and to.mode != "sql"
    if not plain or not {"ce:id", "ce:source"} <= mapped or not {"ce:id"} <= keyed <= {"ce:id", "ce:source"}:
        raise ConfigError(
            f"routes.{route.name}: this job tells a table's rows apart by columns from ce:id and ce:source, and an upsert "
            "by the id as its key; map them, or use `relay verify`"
        )


def as_stored(config: RelayConfig, to: TableDestination) -> AsStored | None:
    """Return how an id reads once the table has it, None if as it was written."""
    store = tables.open_store(to.resource, config.resources[to.resource])
    try:
        return store.as_stored(to.table, next(column for column, source in to.columns.items() if source == "ce:id"))
    finally:
        store.close()


def effects(spark: SparkSession, config: RelayConfig, route: RouteConfig, to: TableDestination) -> DataFrame:
    """Return an effect for each row of the table, by the digest of the message it came from.

    Of a row that does not say which it was (no id, or no source where there are several topics) the digest is empty.
    """
    resource, topics = config.resources[to.resource], route.from_
    topic = topics[0].encode() if len(topics) == 1 else b""
    by_source = {source: column for column, source in to.columns.items()}
    columns, name, table = [by_source["ce:id"], by_source["ce:source"]], to.resource, to.table

    def digests() -> Iterator[dict[str, Any]]:
        store = tables.open_store(name, resource)
        try:
            for identifier, source in store.rows(table, columns):
                fields = {ID: (identifier or "").encode(), SOURCE: (source or "").encode()}
                told = source or topic
                yield {"digest": (identity.cloudevents(fields, topic, None) if told else None) or b""}
        finally:
            store.close()

    return spark.range(1, numPartitions=1).mapInArrow(_streamed(digests, "digest"), "digest binary")


def inbox(
    spark: SparkSession, config: RelayConfig, route: RouteConfig, to: TableDestination, outcome: int
) -> DataFrame:
    """Return the digests of which the inbox records this outcome."""
    resource, name, relay, called = config.resources[to.resource], to.resource, config.relay.name, route.name

    def recorded() -> Iterator[dict[str, Any]]:
        store = tables.open_store(name, resource)
        try:
            yield from ({"digest": row.digest} for row in store.inbox(relay, called) if row.outcome == outcome)
        finally:
            store.close()

    return spark.range(1, numPartitions=1).mapInArrow(_streamed(recorded, "digest"), "digest binary")


def commits(
    spark: SparkSession,
    config: RelayConfig,
    route: RouteConfig,
    to: TableDestination,
    pages: DataFrame | None,
) -> DataFrame:
    """Return in which delivery transaction each message was committed: a page's word, else the inbox row's own."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    resource, name, relay, called = config.resources[to.resource], to.resource, config.relay.name, route.name

    def rows() -> Iterator[dict[str, Any]]:
        store = tables.open_store(name, resource)
        try:
            for row in store.inbox(relay, called):
                if row.outcome == DELIVERED:
                    yield {
                        "digest": row.digest,
                        "applied": row.applied,
                        "transaction": f"inbox/{row.transaction}",
                    }
        finally:
            store.close()

    found = spark.range(1, numPartitions=1).mapInArrow(
        _streamed(rows, "digest", "applied", "transaction"), COMMITS
    )
    found = found.withColumn("entry_order", sql.lit(-1).cast("long"))
    if pages is not None:
        entered = pages.where(f"outcome = {DELIVERED} and transaction is not null and destination >= 0")
        found = found.unionByName(
            entered.select("digest", sql.col("destination").alias("applied"), "transaction", "entry_order")
        )
    commit = sql.struct("entry_order", "applied", "transaction")
    return (
        found.groupBy("digest")
        .agg(sql.max(commit).alias("commit"))
        .select("digest", "commit.applied", "commit.transaction")
    )


def lapses(met: DataFrame, committed: DataFrame) -> DataFrame:
    """Return the messages committed after a later one of their lane; those of one transaction became visible together.

    One delivery transaction may be known by two names. Those of one log partition wait for each other, so that their
    spans never interleave: names whose spans do are one transaction.
    """
    from pyspark.sql import Window  # noqa: PLC0415 - see the package
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    from relay.jobs.records import PLACE_SHIFT  # noqa: PLC0415 - beside Spark

    log = met.where("log is not null and not apart and not scattered").select("digest", "log.pos", "log.at", "log.lane")
    known = log.join(committed, "digest").withColumn("home", sql.shiftright("pos", PLACE_SHIFT)).cache()
    spans = known.groupBy("home", "transaction").agg(
        sql.min("applied").alias("low"), sql.max("applied").alias("high")
    )
    before = Window.partitionBy("home").orderBy("low", "high").rowsBetween(Window.unboundedPreceding, -1)
    starts = sql.coalesce(sql.col("low") > sql.max("high").over(before), sql.lit(True)).cast("int")
    upto = Window.partitionBy("home").orderBy("low", "high").rowsBetween(Window.unboundedPreceding, 0)
    numbered = spans.withColumn("starts", starts).withColumn("turn", sql.sum("starts").over(upto))
    turns = known.join(sql.broadcast(numbered.select("home", "transaction", "turn")), ["home", "transaction"])
    earlier = Window.partitionBy("lane").orderBy("turn").rangeBetween(Window.unboundedPreceding, -1)
    return (
        turns.withColumn("after", sql.max("pos").over(earlier))
        .where("pos < after")
        .select("digest", "pos", "at", "after")
    )


def _streamed(
    rows: Callable[[], Iterator[dict[str, Any]]], *names: str
) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return a function for one task: it passes its one input row over and yields the rows in Arrow batches."""

    def stream(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow  # noqa: PLC0415 - on the executor

        types = {"digest": pyarrow.binary(), "applied": pyarrow.int64(), "transaction": pyarrow.string()}
        schema = pyarrow.schema([(name, types[name]) for name in names])
        if not any(batch.num_rows for batch in batches):
            return
        pending: list[dict[str, Any]] = []
        for row in rows():
            pending.append({name: row[name] for name in names})
            if len(pending) == ROWS:
                yield pyarrow.RecordBatch.from_pylist(pending, schema)
                pending = []
        yield pyarrow.RecordBatch.from_pylist(pending, schema)

    return stream
