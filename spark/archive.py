"""Archives topics (logs, outputs, dead letters) to Parquet by hour or day, then says up to where they may be trimmed.

Each run takes what came since the last one; a run that dies is taken up where it stood, and no record is twice in
the archive (Spark's file sink keeps a list of its files, which readers of the folder obey).
Run it with ``relay spark archive CONFIG --help``.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from relay.config.loading import load
from relay.config.model import RelayConfig
from relay.jobs import session
from relay.jobs.archived import KEY_PREFIX, ArchivedUpTo, decode, made_again
from relay.jobs.following import (
    Following,
    Place,
    exists,
    keep,
    kept,
    last_ended,
    last_planned,
    names,
    qualified,
    rename,
    taken,
)
from relay.jobs.records import Broker, java_settings
from relay.kafka import settings
from relay.kafka.control import ControlTopic
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError
from relay.message.owned_topics import is_owned_topic
from relay.world import clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ANSWER_S = 15.0
_TOPICS = "relay-topics.json"
PERIODS = {"hour": ("topic", "date", "hour"), "day": ("topic", "date")}


def main(arguments: Sequence[str]) -> int:
    """Run the job: 0 archived, 2 wrong words or parts, 3 unreachable."""
    options = _parse(arguments)
    return session.run("archive", lambda: _run(options))


def _parse(arguments: Sequence[str]) -> Namespace:
    parser = session.parser("archive", __doc__ or "")
    parser.add_argument("config", help="the configuration, such as relay.toml")
    parser.add_argument("--topic", action="append", required=True, help="what to archive; may be repeated")
    parser.add_argument(
        "--to", type=session.filled, required=True, help="the archive's folder, or a store's address that Spark knows"
    )
    parser.add_argument(
        "--by", choices=tuple(PERIODS), default="day", help="the partitions' period (default: %(default)s)"
    )
    parser.add_argument(
        "--checkpoint", metavar="FOLDER", help="where progress is kept, a folder or an address that Spark knows (default: under the relay's state, one for each --to)"
    )
    parser.add_argument("--follow", type=session.period, metavar="SECONDS", help="go on, archiving this often")
    parser.add_argument("--keep", action="store_true", help="do not say that what is archived may be trimmed")
    return parser.parse_args(arguments)


def _run(options: Namespace) -> int:
    config = load(Path(options.config))
    topics = options.topic
    if not options.keep:
        refuse_what_is_needed(config.relay.name, topics)
    java = java_settings(config.kafka)
    spark = session.start("archive", options.master)
    broker = Broker(spark, java)
    for topic in topics:
        broker.partitions(topic)
    checkpoint = checkpoint_of(spark, options.to, config.relay.state / "spark", options.checkpoint)
    refuse_another_archive(spark, options.to, options.by, checkpoint)
    ids = _same_topics(config, spark, topics, checkpoint)
    following = Following("archive", checkpoint=checkpoint, trigger_s=options.follow, anew="--to")
    records = _records(spark, java, topics)
    writer = (
        records.writeStream.format("parquet").option("path", options.to).partitionBy(*PERIODS[options.by])
    )
    following.write(writer)
    trimmable = {} if options.keep else _tell(config, ids, taken(spark, checkpoint))
    report = {"to": options.to, "records": following.rows, "trimmable": trimmable}
    said = f"{following.rows:,} records of {', '.join(topics)} were archived in {options.to}"
    session.say(orjson.dumps(report).decode() if options.json else said)
    return 0


def refuse_what_is_needed(relay: str, topics: Iterable[str]) -> None:
    """Raise ConfigError for a topic of the relay's own that may not be trimmed because it was archived: dead letters alone may."""
    for topic in topics:
        if is_owned_topic(relay, topic) and topic != f"{relay}.deadletter":
            raise ConfigError(
                f"--topic {topic}: the relay needs what it has there itself, archived or not; add --keep, which does not say that it may be trimmed"
            )


def checkpoint_of(spark: SparkSession, to: str, state: Path, given: Place | None) -> Place:
    """Return where the progress of this destination is kept: ``given``, else a folder of its own below ``state``.

    ConfigError for a destination whose progress was kept elsewhere: the file sink would skip, as written before, as many
    batches as it has seen.
    """
    checkpoint = given or state / f"archive-{sha256(qualified(spark, to).encode()).hexdigest()[:16]}"
    if exists(spark, f"{checkpoint}/metadata") or not exists(spark, f"{to}/_spark_metadata"):
        return checkpoint
    shared = state / "archive"  # where all destinations together had theirs
    if given is not None or not exists(spark, shared / "metadata"):
        raise ConfigError(
            f"--to {to}: it was archived into before, but {checkpoint} knows nothing of it, and Spark would skip what comes "
            "first; give the --checkpoint of before, or another --to"
        )
    rename(spark, shared, checkpoint)
    return checkpoint


def refuse_another_archive(spark: SparkSession, to: str, by: str, checkpoint: Place) -> None:
    """Raise ConfigError for an archive that has batches of which its checkpoint knows nothing, or lacks some, or that has other periods.

    The file sink would skip, as written before, what such batches have now; what an archive lacks would be called archived; and no reader
    takes folders of days and of hours together.
    """
    written = max((int(one.partition(".")[0]) for one in names(spark, f"{to}/_spark_metadata") if one[0].isdigit()), default=-1)
    planned = last_planned(spark, checkpoint)
    if written > planned:
        raise ConfigError(
            f"--to {to}: it has batch {written} by now, and {checkpoint} {f'ends with batch {planned}' if planned >= 0 else 'is new'}: it went "
            "back, or is another archive's, and Spark would skip what comes first; bring the checkpoint back, or give another --to"
        )
    ended = last_ended(spark, checkpoint)
    if ended > written:
        raise ConfigError(
            f"--to {to}: it {f'ends with batch {written}' if written >= 0 else 'has no batch'} by now, and {checkpoint} has written there up to batch {ended}: "
            "it was removed or put back, and what it had would be called archived; bring it back, or give another --to, to which no other's "
            "--checkpoint is given"
        )
    began = _period(spark, to)
    if began not in (None, by):
        raise ConfigError(f"--by {by}: {to} is an archive by {began}, and nobody could read both together; give --by {began}, or another --to")


def _period(spark: SparkSession, to: str) -> str | None:
    """Return the period of an archive, as its folders have it; None if it has none yet."""
    folder = to
    for column in PERIODS["day"]:
        below = [one for one in names(spark, folder) if one.startswith(f"{column}=")]
        if not below:
            return None
        folder = f"{folder}/{below[-1]}"
    return "hour" if any(one.startswith("hour=") for one in names(spark, folder)) else "day"


def _records(spark: SparkSession, java: dict[str, str], topics: list[str]) -> DataFrame:
    """Return the topics' committed records as columns of the archive; the CloudEvents attributes stand apart."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - needs PySpark, which --help does not

    options: dict[str, Any] = {f"kafka.{name}": value for name, value in java.items()}
    options |= {
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "startingOffsets": "earliest",
    }
    found = spark.readStream.format("kafka").options(**options).option("subscribe", ",".join(topics)).load()
    header = sql.map_from_entries("headers")
    attributes = (
        header[f"ce_{name}"].cast("string").alias(f"ce_{name}")
        for name in ("id", "source", "type", "time", "subject")
    )
    return found.select(
        "partition", "offset", "timestamp", "key", "value", "headers", *attributes, "topic",
        sql.to_date("timestamp").alias("date"), sql.hour("timestamp").alias("hour"),
    )  # fmt: skip


def _same_topics(config: RelayConfig, spark: SparkSession, topics: list[str], checkpoint: Place) -> dict[str, bytes]:
    """Return the topics' ids, and keep them with the progress; ConfigError if that is of another topic of one's name.

    Spark would go on at the other one's offsets, and pass over what lies below them.
    """
    ids = _topic_ids(config, topics)
    path = f"{checkpoint}/{_TOPICS}"
    begun = orjson.loads(kept(spark, path) or b"{}")
    reached = taken(spark, checkpoint)
    if left_out := sorted(reached.keys() - ids.keys()):
        raise ConfigError(
            f"--topic: {', '.join(left_out)} was archived there before, and what a run leaves out is lost to Spark, for later runs as well; "
            "name it too, or give another --to"
        )
    _refuse_another(made_again(ids, begun, reached, () if begun or not reached else _told(config)))
    if not ids.keys() <= begun.keys():
        keep(spark, path, orjson.dumps(begun | {topic: one.hex() for topic, one in ids.items()}))
    return ids


def _topic_ids(config: RelayConfig, topics: Iterable[str]) -> dict[str, bytes]:
    with Topics(config.kafka, config.timing) as known:
        return {name: facts.topic_id for name, facts in known.describe(list(topics), settings=False).items()}


def _refuse_another(topic: str | None) -> None:
    if topic is not None:
        raise ConfigError(
            f"topic {topic} was deleted and created again since it was archived: what this one has below the offsets of that one would be "
            "passed over, and called archived; begin anew with another --to"
        )


def _control(config: RelayConfig) -> ControlTopic:
    return ControlTopic(
        settings.consumer(config.kafka, config.timing, f"{config.relay.name}.archive"),
        settings.producer(config.kafka, config.timing),
        config.control_topic,
        clock.monotonic,
        ANSWER_S,
    )


def _told(config: RelayConfig) -> list[ArchivedUpTo]:
    if not _topic_ids(config, [config.control_topic]):
        return []
    control = _control(config)
    try:
        return [found for key, value in control.under([KEY_PREFIX]) if (found := decode(key, value))]
    finally:
        control.close()


def _tell(
    config: RelayConfig, ids: Mapping[str, bytes], ends: Mapping[str, Mapping[int, int]]
) -> dict[str, dict[str, int]]:
    """Write into the control topic up to where each topic is archived; the files are in place by now.

    ``ids`` are those of the topics that were read: a record under another one's id would have that trimmed unread.
    """
    now = _topic_ids(config, [*ids, config.control_topic])
    _refuse_another(next((topic for topic, one in ids.items() if now.get(topic) != one), None))
    if config.control_topic not in now:
        raise ConfigError(
            f"topic {config.control_topic} does not exist: run `relay migrate`, then this job again"
        )
    control = _control(config)
    told: dict[str, dict[str, int]] = {}
    try:
        before = {found.key: found for key, value in control.under([KEY_PREFIX]) if (found := decode(key, value))}
        for topic, positions in ends.items():
            if topic not in ids:
                continue  # archived by an earlier run with this progress, and not by this one
            first = ArchivedUpTo(topic, ids[topic])
            reached = before.get(first.key, first).advanced_by(
                {int(p): offset for p, offset in positions.items()}
            )
            control.put(reached.key, reached.encode(), wait=True)
            told[topic] = {str(p): offset for p, offset in sorted(reached.positions.items())}
    finally:
        control.close()
    return told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
