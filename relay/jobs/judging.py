"""Every message is judged where its facts meet: one shuffle by digest, then counts by time window.

The rules are those of ``relay.audit.checker``: of several records of one identity the first counts, an effect beyond
the first is a duplicate, one after a later message of its lane is reordered, one of no captured message a phantom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from relay.jobs.records import OFFSETS, PLACE_SHIFT
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, DELIVERED, NOT_DELIVERED, SKIPPED, InputRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CAPTURED: Final = 0
EFFECT: Final = 1
TAKEN_BACK: Final = 2
UNDECIDED: Final = 3
PUT_ASIDE: Final = 4
REDRIVEN: Final = 5
DYING: Final = 6
"""What a fact is about a digest: a message that counts, an effect, a message of an aborted or of an undecided
capture, a dead letter (``pos`` is the number of its redrive), what takes dead letters back, a death in the inbox, which its dead letter follows."""

SECOND: Final = "second"
REDRIVING: Final = "redriving"
"""Verdicts on a message with an effect whose dead letter stands: a second outcome, or a redrive is under way."""
UNKNOWN: Final = "log is null and effects > 0 and aborted is null and undecided is null"
ABORTED_LETTER: Final = "dead and log is null and aborted is not null and undecided is null"
LOST_WORDS: Final = {
    "lost_dead": "recorded as dead, but there is no dead letter of it",
    "lost_entered": "recorded as delivered, but it has no effect",
    "lost_passed": "passed by the route, but it has no effect",
}
_ENTRY: Final = {
    "replay": "short", "entry_order": "long", "outcome": "short", "log_topic": "string", "log_partition": "int",
    "log_offset": "long", "at": "long", "home": "int", "transaction": "string",
}  # fmt: skip
"""An entry's columns, by which the deciding one is the greatest; ``home`` is the monitor partition that it lies in."""
COUNTED: Final = (
    "captured", "delivered", "lost", "duplicates", "reordered", "phantoms", "aborted", "in_doubt", "dead_letters",
    "conflicts", "unseen", "altered", "expired", "skipped", "repeats", "told", "forgotten",
)  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """What the route itself says; positions and lows by log partition, in the order of the log's places."""

    partitions: Sequence[LogPartition]
    positions: Mapping[LogPartition, int]
    lows: Mapping[LogPartition, int]
    open_ranges: Sequence[InputRange] = field(default_factory=list)
    told: Sequence[InputRange] = field(default_factory=list)
    remembered: Mapping[LogPartition, int] | None = None
    """From which offset on an output partition is younger than what log and monitor have lost; None: all is."""
    outputs: Sequence[LogPartition] = ()


def sided(facts: DataFrame, side: int | Column) -> DataFrame:
    """Return facts as one side of the union by digest."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    types = {"pos": "long", "at": "timestamp", "content": "long", "lane": "long", "shared": "long"}
    have = [sql.col(n) if n in facts.columns else sql.lit(None).cast(t).alias(n) for n, t in types.items()]
    return facts.select(sql.lit(side).cast("byte").alias("side"), "digest", *have)


def ended(messages: DataFrame, outcomes: DataFrame | None) -> DataFrame:
    """Return messages that no marker committed as sides, by the outcome of their captures (None: nothing is known)."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    if outcomes is None:
        return sided(messages, UNDECIDED)
    outcome = sql.col("outcome")
    side = sql.when(outcome == "committed", CAPTURED).when(outcome == "aborted", TAKEN_BACK).otherwise(UNDECIDED)
    return sided(messages.join(outcomes, "capture", "left"), side)


def meet(sides: Iterable[DataFrame]) -> DataFrame:
    """Return one row for each digest: its first record in the log, its effects, and what else is known of it."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    first, *rest = sides
    for other in rest:
        first = first.unionByName(other)
    log, effect = sql.col("side") == CAPTURED, sql.col("side") == EFFECT
    number = sql.shiftright("pos", PLACE_SHIFT)
    by_digest = first.repartition("digest").sortWithinPartitions("digest").groupBy("digest")
    found = by_digest.agg(
        sql.min(sql.when(log, sql.struct("pos", "at", "content", "lane", "shared"))).alias("log"),
        sql.count_if(log).alias("records"),
        (sql.min(sql.when(log, sql.col("content"))) != sql.max(sql.when(log, sql.col("content")))).alias(
            "differs"
        ),
        (sql.min(sql.when(log, number)) != sql.max(sql.when(log, number))).alias("scattered"),
        sql.min(sql.when(effect, sql.struct("pos", "at", "content"))).alias("effect"),
        sql.max(sql.when(effect, sql.col("pos"))).alias("last_effect"),
        sql.count_if(effect).alias("effects"),
        sql.min(sql.when(sql.col("side") == TAKEN_BACK, sql.struct("pos", "at"))).alias("aborted"),
        sql.min(sql.when(sql.col("side") == UNDECIDED, sql.struct("pos", "at"))).alias("undecided"),
        sql.coalesce(sql.bool_or(sql.col("side") == PUT_ASIDE), sql.lit(False)).alias("dead"),
        sql.max(sql.when(sql.col("side") == PUT_ASIDE, sql.col("pos"))).alias("death"),
        sql.bool_or(sql.col("side") == REDRIVEN).alias("redriven"),
        sql.bool_or(sql.col("side").isin(PUT_ASIDE, REDRIVEN)).alias("apart"),
        sql.bool_or(sql.col("side") == DYING).alias("dying"),
    )
    return found.withColumn("at", sql.coalesce("log.at", "effect.at", "aborted.at", "undecided.at"))


def strangers(met: DataFrame) -> DataFrame:
    """Return the digests of effects of no message that the log has."""
    return met.where(UNKNOWN).select("digest")


def unexplained(met: DataFrame) -> DataFrame:
    """Return the digests about which the monitor must be asked: messages without effect, effects without message."""
    return met.where(f"(log is not null and effects = 0) or ({UNKNOWN})").select("digest")


def deaths_with_effect(met: DataFrame) -> DataFrame:
    """Return the messages with an effect whose dead letter stands, with the number of the redrive in which they died."""
    return met.where("log is not null and effects > 0 and death is not null").select("digest", "death")


def deciding_entries(rows: DataFrame) -> DataFrame:
    """Return the deciding entry of each digest, the latest of its last redrive, where it shows an outcome."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    entry = sql.struct(*_ENTRY).alias("entry")
    return (
        rows.groupBy("digest")
        .agg(sql.max(entry).alias("entry"))
        .where(sql.col("entry.outcome") != NOT_DELIVERED)
    )


def deaths_without_letter(met: DataFrame, entered: DataFrame) -> DataFrame:
    """Return the deciding entries of messages without an effect that are recorded as dead, and have no dead letter."""
    missing = met.where("log is not null and effects = 0 and not dead").select("digest")
    return missing.join(entered.where(f"entry.outcome = {DEAD}"), "digest").select("digest", "entry.*")


def judge(
    met: DataFrame,
    entered: DataFrame | None,
    standing: Standing,
    of_others: DataFrame | None = None,
    second: DataFrame | None = None,
    forgotten: DataFrame | None = None,
    untold: DataFrame | None = None,
) -> DataFrame:
    """Add to each row its ``verdict``: ``right``, or what is wrong with a missing message or an unknown effect.

    ``of_others`` names effects of other routes, and whether each is ``former``: one that is configured no more.
    ``second`` is the verdict ``beside`` on effects whose dead letter stands. Of deaths that are ``forgotten`` retention may
    have taken the letter. ``untold`` are what ``of_unknown`` returns.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    known = _with(met, entered, "entry", f"struct<{','.join(map(':'.join, _ENTRY.items()))}>")
    known = _with(known, of_others, "former", "boolean")
    known = _with(known, second if second is None else sql.broadcast(second), "beside", "string")
    known = _with(known, forgotten if forgotten is None else sql.broadcast(forgotten), "forgotten", "boolean")
    known = _with(known, untold, "untold", "boolean")
    outcome = sql.col("entry.outcome")
    is_delivered = sql.coalesce(outcome == DELIVERED, sql.lit(False))
    number, offset = sql.shiftright("log.pos", PLACE_SHIFT), sql.col("log.pos").bitwiseAND(OFFSETS)
    position = _by_partition(number, standing.partitions, standing.positions)
    missing = (
        sql.when(sql.col("redriven") & ~is_delivered, "unseen")
        # A letter excuses nothing that was delivered: anyone may have written it, or left it.
        .when((sql.col("dead") & ~is_delivered) | ((outcome == DEAD) & sql.col("forgotten")), "put_aside")
        .when(outcome == SKIPPED, "skipped")
        .when(sql.col("dying"), "unseen")
        .when(outcome == DEAD, "lost_dead")
        .when(outcome.isNotNull() & _lies_in(number, offset, standing.partitions, standing.told), "told")
        .when(outcome.isNotNull(), "lost_entered")
        .when(offset < position, "lost_passed")
        .when(_lies_in(number, offset, standing.partitions, standing.open_ranges), "in_doubt")
        .otherwise("unseen")
    )
    unknown = (
        sql.when(sql.col("undecided").isNotNull(), "undecided")
        .when(sql.col("aborted").isNotNull(), "phantom_aborted")
        .when(~sql.col("former"), "of_others")
        .when((is_delivered & _is_expired(standing.lows)) | sql.coalesce("former", sql.lit(False)), "expired")
        .when(sql.col("entry").isNull() & (sql.coalesce("untold", sql.lit(False)) | _is_forgotten(standing)), "forgotten")
        .otherwise("phantom")
    )
    verdict = (
        sql.when(sql.col("log").isNotNull() & (sql.col("effects") > 0), sql.coalesce("beside", sql.lit("right")))
        .when(sql.col("log").isNotNull(), missing)
        .when(sql.col("effects") > 0, unknown)
        .otherwise("none")
    )
    return known.withColumn("verdict", verdict)


def _with(known: DataFrame, more: DataFrame | None, column: str, kind: str) -> DataFrame:
    """Join what is known beside, which has this column; null in every row where that is nothing."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    return known.withColumn(column, sql.lit(None).cast(kind)) if more is None else known.join(more, "digest", "left")


def of_unknown(met: DataFrame, marks: DataFrame, known: Iterable[bytes]) -> DataFrame:
    """Return the effects of no message whose records, the first and the last, are of producer instances that no monitor knows."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    written = marks.where(sql.col("instance").isNotNull() & ~sql.col("instance").isin([one.hex() for one in known]))
    first, last = written.select("pos"), written.select(sql.col("pos").alias("last_effect"))
    strange = met.where(UNKNOWN).select("digest", "effect.pos", "last_effect")
    found = strange.join(first, "pos", "left_semi").join(last, "last_effect", "left_semi")
    return found.select("digest", sql.lit(True).alias("untold"))


def first_recent(
    marks: DataFrame, recent: DataFrame, outputs: Sequence[LogPartition]
) -> dict[LogPartition, int]:
    """Return the offset of the first record in each output partition whose transaction is a recent one."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    young = marks.join(sql.broadcast(recent), "instance").where("n >= first")
    first = young.groupBy(sql.shiftright("pos", PLACE_SHIFT).alias("number")).agg(sql.min("pos").alias("pos"))
    return {outputs[row.number]: row.pos & OFFSETS for row in first.collect()}


def sharing(judged: DataFrame) -> DataFrame:
    """Take for delivered what is lost where a message of the same id has a row: the table keeps one row of them."""
    from pyspark.sql import Window  # noqa: PLC0415 - see the package
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    alike = Window.partitionBy("log.shared")
    has_row = sql.max("effects").over(alike) > 0
    kept = judged.withColumn(
        "kept", sql.col("log.shared").isNotNull() & sql.col("verdict").startswith("lost") & has_row
    )
    effects = sql.when(sql.col("kept"), sql.lit(1)).otherwise(sql.col("effects"))
    verdict = sql.when(sql.col("kept"), "right").otherwise(sql.col("verdict"))
    return kept.withColumn("effects", effects).withColumn("verdict", verdict).drop("kept")


def lapses(met: DataFrame) -> DataFrame:
    """Return the messages whose first effect came after that of a later message of their lane, with the later offset.

    Not of what lies in two partitions of the log: which of its records an effect is of, nothing tells.
    """
    from pyspark.sql import Window  # noqa: PLC0415 - see the package
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    delivered = met.where("log is not null and effects > 0 and not apart and not scattered").select(
        "digest",
        sql.col("log.pos").alias("pos"),
        sql.col("log.at").alias("at"),
        sql.col("log.lane").alias("lane"),
        sql.shiftright("effect.pos", PLACE_SHIFT).alias("home"),
        sql.col("effect.pos").alias("effect_pos"),
    )
    before = (
        Window.partitionBy("home", "lane").orderBy("effect_pos").rowsBetween(Window.unboundedPreceding, -1)
    )
    ordered = delivered.withColumn("after", sql.max("pos").over(before))
    return ordered.where(sql.col("pos") < sql.col("after"))


def not_redriven(late: DataFrame, pages: DataFrame) -> DataFrame:
    """Leave out what the monitor says was redriven: its dead letter, and what took that back, may be gone by now."""
    return late.join(pages.where("replay > 0").select("digest").distinct(), "digest", "left_anti")


def wandering_lanes(met: DataFrame) -> int:
    """Return how many lanes have effects in more than one output partition: their order cannot be seen."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    home = sql.shiftright("effect.pos", PLACE_SHIFT)
    lanes = met.where("log is not null and effects > 0").groupBy("log.lane")
    return lanes.agg((sql.min(home) != sql.max(home)).alias("moved")).where("moved").count()


def conflicts(met: DataFrame, facts: DataFrame) -> DataFrame:
    """Return the records beyond a digest's first that differ in content, or lie in another partition."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    odd = met.where("differs or scattered").select("digest", "log")
    first = sql.shiftright("log.pos", PLACE_SHIFT)
    return facts.join(odd, "digest").select(
        "pos",
        "at",
        (sql.col("content") != sql.col("log.content")).alias("conflict"),
        (sql.shiftright("pos", PLACE_SHIFT) != first).alias("elsewhere"),
    )


def counts(judged: DataFrame, window: Column) -> DataFrame:
    """Return the counts of each time window, with the delays from log to destination in milliseconds."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    log, effects = sql.col("log").isNotNull(), sql.col("effects")
    delivered = log & (effects > 0)
    verdict = sql.col("verdict")
    phantom = verdict.startswith("phantom")
    expired = verdict == "expired"
    undecided = sql.col("undecided").isNotNull() & ~log
    altered = delivered & (sql.col("log.content") != sql.col("effect.content"))
    delay = sql.when(delivered, sql.unix_millis("effect.at") - sql.unix_millis("log.at"))
    wanted = {
        "captured": sql.count_if(log),
        "delivered": sql.count_if(delivered),
        "lost": sql.count_if(verdict.startswith("lost")),
        "duplicates": sql.sum(sql.when(delivered | expired, effects - 1).otherwise(0)) + sql.count_if(verdict == SECOND),
        "phantoms": sql.sum(sql.when(phantom, effects).otherwise(0)) + sql.count_if(sql.expr(ABORTED_LETTER)),
        "aborted": sql.count_if(sql.col("aborted").isNotNull() & ~log),
        "in_doubt": sql.count_if(undecided) + sql.count_if(verdict == "in_doubt"),
        "dead_letters": sql.count_if("dead"),
        "unseen": sql.count_if(verdict.isin("unseen", REDRIVING)),
        "altered": sql.count_if(altered),
        "expired": sql.count_if(expired),
        "skipped": sql.count_if(verdict == "skipped"),
        "repeats": sql.sum(sql.when(log, sql.col("records") - 1).otherwise(0)),
        "told": sql.count_if(verdict == "told"),
        "forgotten": sql.sum(sql.when(verdict == "forgotten", effects).otherwise(0)),
        "scattered": sql.count_if("scattered"),
        "differs": sql.count_if("differs"),
        "delays": sql.percentile_approx(delay, [0.5, 0.99], 200),
    }
    return judged.groupBy(window.alias("window")).agg(*(made.alias(name) for name, made in wanted.items()))


def _by_partition(
    number: Column, partitions: Sequence[LogPartition], values: Mapping[LogPartition, int]
) -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    found = sql.array(*(sql.lit(values.get(one, 0)).cast("long") for one in partitions))
    return sql.try_element_at(found, number.cast("int") + 1)


def _lies_in(
    number: Column, offset: Column, partitions: Sequence[LogPartition], ranges: Iterable[InputRange]
) -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    places = {(one.topic, one.partition): index for index, one in enumerate(partitions)}
    inside = sql.lit(False)
    for one in ranges:
        index = places.get((one.topic, one.partition))
        if index is not None:
            inside |= (number == index) & (offset >= one.first) & (offset < one.next)
    return inside


def _is_forgotten(standing: Standing) -> Column:
    """Whether an effect may be older than what log and monitor remember; that of a table, which has no place, may."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    if standing.remembered is None:
        return sql.lit(False)
    if not standing.outputs:
        return sql.lit(True)
    number, offset = sql.shiftright("last_effect", PLACE_SHIFT), sql.col("last_effect").bitwiseAND(OFFSETS)
    since = {place: standing.remembered.get(place, OFFSETS) for place in standing.outputs}
    return offset < _by_partition(number, standing.outputs, since)


def _is_expired(lows: Mapping[LogPartition, int]) -> Column:
    """As `relay.audit.verify` judges it: of what a settlement found in outputs alone nobody knows where it lay in the log."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    topic, partition, offset = (sql.col(f"entry.log_{name}") for name in ("topic", "partition", "offset"))
    has_lost = sql.lit(any(lows.values()))
    expired = sql.lit(True)  # also of a topic that the route does not read any more
    for place, low in lows.items():
        has_left = sql.when(offset < 0, has_lost).otherwise(offset < low)
        expired &= (topic != place.topic) | (partition != place.partition) | has_left
    return sql.coalesce(expired, sql.lit(False))
