"""Columns that the jobs make, held against plain Python: one session without a broker, in a zone whose clock is shifted."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from pyspark.sql import functions

from relay.jobs import facts, judging
from relay.jobs.facts import Rules
from relay.jobs.following import keep, kept, taken
from relay.jobs.records import PLACE_SHIFT
from relay.local.spark import submission
from relay.message import identity
from relay.message.errors import ConfigError
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, DELIVERED, SKIPPED, InputRange
from relay.spark.batches import _records
from relay.spark.columns import kafka_columns, utc_text
from relay.spark.options import WriteOptions
from relay.spark.reading import _each_once, _names_capture
from spark.archive import checkpoint_of
from spark.capture import _identifier, _read_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HALF_HOUR_S = 1800
SHIFTS = {
    "Europe/Berlin": (datetime(2024, 3, 31, tzinfo=UTC), datetime(2024, 10, 27, tzinfo=UTC)),
    "America/New_York": (datetime(2024, 3, 10, tzinfo=UTC), datetime(2024, 11, 3, tzinfo=UTC)),
    "UTC": (datetime(1969, 12, 31, tzinfo=UTC),),
}
"""Days on which a zone skips an hour, or has one twice."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Return a session whose processes live in Berlin."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    own = {
        "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "512m", "spark.log.level": "ERROR",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=Europe/Berlin",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in submission("capture", []).environment.items():
            patch.setenv(name, value)
        patch.delenv("PYSPARK_SUBMIT_ARGS")  # its JVM is the job's, in UTC
        patch.setenv("TZ", "Europe/Berlin")
        builder = SparkSession.builder.master("local[1]").appName("relay-frames")
        for key, value in own.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.mark.parametrize("zone", SHIFTS)
def test_a_time_is_written_in_utc_also_in_the_hour_that_a_zone_skips_or_has_twice(spark: Any, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    moments = [int(day.timestamp()) + step * HALF_HOUR_S for day in SHIFTS[zone] for step in range(48)]
    rows = spark.createDataFrame([(one,) for one in moments], "s long").selectExpr("s", "timestamp_micros(s * 1000000 + 7) as at")

    found = [row.text for row in rows.select(utc_text(rows, "at").alias("text")).collect()]

    assert found == [datetime.fromtimestamp(one, UTC).strftime("%Y-%m-%dT%H:%M:%S.000007Z") for one in moments]


def test_no_time_stays_none_and_text_stays_as_it_is(spark: Any) -> None:
    rows = spark.createDataFrame([(None, "2024-03-31T02:30:00+02:00"), (None, None)], "at timestamp, said string")

    found = rows.select(utc_text(rows, "at").alias("at"), utc_text(rows, "said").alias("said")).collect()

    assert [tuple(row) for row in found] == [(None, "2024-03-31T02:30:00+02:00"), (None, None)]

    unzoned = spark.sql("select timestamp_ntz'2024-03-31 02:30:00.5' as at, date'2024-03-31' as day")
    assert [*unzoned.select(utc_text(unzoned, "at"), utc_text(unzoned, "day")).head()] == ["2024-03-31T02:30:00.5Z", "2024-03-31T00:00:00Z"]


def test_of_a_batch_a_row_says_no_more_than_it_may_and_a_gap_falls_back(spark: Any) -> None:
    given = [(name, b"theirs") for name in ("ce_relaycapture", "relay_instance", "relay_n", "relay_digest", "ce_id", "traceparent")]
    rows = spark.createDataFrame(
        [(b"1", "a", given, "/s", None, None), (b"2", "b", None, None, "t", "u")],
        "value binary, id string, headers array<struct<key:string,value:binary>>, source string, type string, subject string",
    )

    made = _records(rows, WriteOptions("shop", {}, "orders"), "q", b"c" * 16, b"decisions:q/1/run", 4).collect()

    own = {"ce_specversion": b"1.0", "ce_relaycapture": (b"c" * 16).hex().encode(), "ce_relayresource": b"decisions:q/1/run"}
    first, second = ([(one.key, bytes(one.value)) for one in row.headers] for row in made)
    assert sorted(first) == sorted({**own, "ce_id": b"a", "ce_source": b"/s", "ce_type": b"relay.message", "traceparent": b"theirs"}.items()), (
        "a settlement would take it for a relay's output"
    )
    assert sorted(second) == sorted({**own, "ce_id": b"b", "ce_source": b"/spark/q", "ce_type": b"t", "ce_subject": b"u"}.items())
    assert [row.partition for row in made] == [crc32(row_id) % 4 for row_id in (b"a", b"b")]


def test_a_message_whose_capture_is_null_is_no_plain_one(spark: Any) -> None:
    """Workers make a dead letter of it, and the stream does not show it."""
    given = [None, [], [("ce_id", b"a")], [("ce_relaycapture", None)], [("ce_relaycapture", b"c" * 32)]]
    rows = spark.createDataFrame([(one,) for one in given], "headers array<struct<key:string,value:binary>>")

    assert [row.named for row in rows.select(_names_capture().alias("named")).collect()] == [False, False, False, True, True]


@pytest.mark.parametrize(("given", "kind"), [(-1, "int"), (4, "int"), (2**32, "long"), ("4", "string"), ("x", "string"), ("1.5", "string"), (1.5, "double")])
def test_a_partition_that_the_topic_does_not_have_stops_the_batch_with_a_sentence(spark: Any, given: Any, kind: str) -> None:
    def placed(number: Any) -> Any:
        rows = spark.createDataFrame([(b"1", "a", number)], f"value binary, id string, partition {kind}")
        return _records(rows, WriteOptions("shop", {}, "orders"), "q", b"c" * 16, b"decisions:q/1/run", 4).head().partition

    with pytest.raises(Exception, match=f"column partition is {given}, but topic orders has 4 partitions"):
        placed(given)
    assert placed(type(given)(3)) == 3
    assert placed(None) == crc32(b"a") % 4


@pytest.mark.parametrize("called", ["progress", "progress [new]", "{progress}*"])
def test_what_is_archived_is_what_the_last_batch_that_ended_had_taken(spark: Any, tmp_path: Path, called: str) -> None:
    """Also in a folder whose name Spark's readers take for a pattern: they found nothing, or another one's progress."""
    tmp_path = tmp_path / called
    tmp_path.mkdir()
    assert taken(spark, tmp_path) == {}
    for number in (9, 10, 11):
        for folder in ("offsets", "commits") if number < 11 else ("offsets",):
            (tmp_path / folder).mkdir(exist_ok=True)
            lines = ["v1", '{"batchWatermarkMs":0,"conf":{}}', f'{{"orders":{{"1":{number + 1},"0":{number}}},"bills":{{"0":3}}}}']
            (tmp_path / folder / str(number)).write_text("\n".join(lines), "utf-8")

    assert taken(spark, tmp_path) == {"orders": {0: 10, 1: 11}, "bills": {0: 3}}, "batch 11 was planned, and may not be written"


def test_a_small_file_is_kept_in_the_place_of_the_one_before(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "progress [new]" / "topics.json"
    assert kept(spark, path) == b""

    for content in (b'{"orders": 1}', b'{"orders": 1, "bills": 2}'):
        keep(spark, path, content)
        assert kept(spark, path) == content

    assert not [one.name for one in path.parent.iterdir() if one.name.endswith(".new")]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_an_id_that_is_a_number_is_written_as_its_digits(spark: Any, ansi: str) -> None:
    """Spark refused it, or without ANSI wrote its four bytes, of which the zeros are refused by queues and databases."""
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        rows = kafka_columns(spark.sql("select 7 as id, 'v' as value"), id="id", source="/s", type="t").collect()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")

    assert (bytes(rows[0].key), {one.key: bytes(one.value) for one in rows[0].headers}["ce_id"]) == (b"7", b"7")


def test_a_row_without_a_key_lies_where_its_id_says(spark: Any) -> None:
    """Anywhere else its repeat would be no repeat to the relay."""
    rows = spark.createDataFrame([("a", "k", "1"), ("b", None, "2")], "id string, key string, value string")

    by_count = kafka_columns(rows, id="id", source="/s", type="t", key="key", partitions=4).collect()
    by_sink = kafka_columns(rows, id="id", source="/s", type="t", key="key").collect()
    by_id = kafka_columns(rows, id="id", source="/s", type="t", partitions=4).collect()

    assert [(row.key, row.partition) for row in by_count] == [(b"k", crc32(b"k") % 4), (None, crc32(b"b") % 4)]
    assert [row.key for row in by_sink] == [b"k", b"b"]
    assert [(row.key, row.partition) for row in by_id] == [(b"a", crc32(b"a") % 4), (b"b", crc32(b"b") % 4)]


@pytest.mark.parametrize(("given", "said"), [
    ({"id": "array(id, value)"}, r"column id is array<string>, of which different ones may be written alike"),
    ({"id": "map(id, value)"}, r"column id is map<string,string>, .*to_json"),
    ({"id": "timestamp_seconds(1)"}, "column id is timestamp, of which Europe/Berlin writes two alike"),
    ({"source": "timestamp_seconds(1)"}, "column source is timestamp, of which Europe/Berlin writes two alike"),
    ({"subject": "array(id)"}, "column subject is array<string>"),
    ({"value": "struct(id)"}, "column value is struct<id:string>"),
    ({"key": "current_date()"}, "column key is date; cast it to binary or string"),
], ids=["list", "map", "time", "source", "subject", "value", "key"])  # fmt: skip
def test_rows_of_a_plain_job_that_may_be_named_alike_are_refused(spark: Any, given: dict[str, str], said: str) -> None:
    """Of two rows with the ids ["a, b"] and ["a", "b"], or 02:30 before and behind the shift of the clock, one was lost as the other's repeat."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    rows = spark.createDataFrame([("a", "1")], "id string, value string")

    with pytest.raises(ConfigError, match=said):
        kafka_columns(rows, **{"id": "id", "source": "/s", "type": "t"} | {name: functions.expr(text) for name, text in given.items()})

    spark.conf.set("spark.sql.session.timeZone", "UTC")
    (row,) = kafka_columns(rows, id=functions.expr("timestamp_seconds(1)"), source=functions.lit(7), type="t").collect()
    spark.conf.unset("spark.sql.session.timeZone")
    headers = {one.key: bytes(one.value) for one in row.headers}
    assert (headers["ce_id"], headers["ce_source"]) == (b"1970-01-01 00:00:01", b"7")


class TestArchiveCheckpoint:
    """Where an archive's progress is kept."""

    @staticmethod
    def begun(checkpoint: Path) -> Path:
        checkpoint.mkdir(parents=True)
        (checkpoint / "metadata").touch()
        return checkpoint

    @staticmethod
    def written(to: Path) -> str:
        (to / "_spark_metadata").mkdir(parents=True)
        return str(to)

    def test_each_destination_has_its_own_however_it_is_written(self, spark: Any, tmp_path: Path) -> None:
        one, same, other = (
            checkpoint_of(spark, to, tmp_path / "state", None)
            for to in (f"{tmp_path}/a", f"file:{tmp_path}/b/../a/", f"{tmp_path}/b")
        )

        assert one == same
        assert one != other
        assert one.parent == tmp_path / "state"

    def test_the_one_that_all_shared_goes_to_one_destination_of_before(self, spark: Any, tmp_path: Path) -> None:
        self.begun(tmp_path / "archive")
        new = checkpoint_of(spark, str(tmp_path / "new"), tmp_path, None)
        assert not new.exists(), "a new destination begins at the log's beginning"

        found = checkpoint_of(spark, self.written(tmp_path / "old"), tmp_path, None)

        assert (found / "metadata").exists()
        assert not (tmp_path / "archive").exists()
        assert checkpoint_of(spark, str(tmp_path / "old"), tmp_path, None) == found
        with pytest.raises(ConfigError, match="archived into before"):
            checkpoint_of(spark, self.written(tmp_path / "second"), tmp_path, None)

    def test_another_checkpoint_for_a_destination_of_before_is_refused(self, spark: Any, tmp_path: Path) -> None:
        to = self.written(tmp_path / "old")

        with pytest.raises(ConfigError, match="archived into before"):
            checkpoint_of(spark, to, tmp_path, tmp_path / "given")
        given = self.begun(tmp_path / "given")
        assert checkpoint_of(spark, to, tmp_path, given) == given


def test_a_file_is_captured_however_old_it_is_beside_the_newest_one(spark: Any, tmp_path: Path) -> None:
    """As from a copy that keeps the files' times, or beside a file whose time lies ahead."""
    drops, rows = tmp_path / "drops", list[str]()
    drops.mkdir()
    options = Namespace(input=str(drops), format="csv", null="", escape='"', schema="id string", files_per_batch=None, id="id")

    def capture(name: str, at: datetime) -> None:
        (drops / name).write_text(f"id\n{name}\n", "utf-8")
        os.utime(drops / name, (at.timestamp(), at.timestamp()))
        stream = _read_files(spark, options).writeStream.option("checkpointLocation", str(tmp_path / "progress"))
        query = stream.foreachBatch(lambda batch, _: rows.extend(row.id for row in batch.collect())).trigger(availableNow=True).start()
        query.awaitTermination()

    capture("new.csv", datetime(2026, 3, 1, tzinfo=UTC))
    capture("old.csv", datetime(1999, 3, 1, tzinfo=UTC))

    assert rows == ["new.csv", "old.csv"]


def test_a_stream_drops_repeats_and_no_message_for_its_age(spark: Any, tmp_path: Path) -> None:
    """As of a capture that nobody had decided for long, or of a publisher whose clock was ahead."""
    log, ids = tmp_path / "log", list[str]()
    log.mkdir()
    columns = "timestamp timestamp, source string, id string, topic string, partition int, offset long, headers array<struct<key:string,value:binary>>"

    def read(offset: int, at: str, identity: str) -> None:
        place = {"timestamp": at, "source": "/s", "id": identity, "topic": "log", "partition": 0, "offset": offset}
        (log / f"{offset}.json").write_text(json.dumps(place), "utf-8")
        rows = _each_once(spark.readStream.schema(columns).json(str(log)), "7 days")
        stream = rows.writeStream.option("checkpointLocation", str(tmp_path / "progress")).trigger(availableNow=True)
        stream.foreachBatch(lambda batch, _: ids.extend(row.id for row in batch.collect())).start().awaitTermination()

    read(0, "2099-03-01T00:00:00Z", "ahead")
    read(1, "2026-03-01T00:00:00Z", "old")
    read(2, "2026-03-01T00:00:00Z", "ahead")
    read(3, "2026-03-02T00:00:00Z", "old")

    assert ids == ["ahead", "old"]


def test_a_stream_takes_ids_for_different_that_read_alike(spark: Any, tmp_path: Path) -> None:
    """As Latin-1 has them: what is not UTF-8 is one character in a text, whatever it was; workers go by the bytes."""
    columns = "source string, id string, topic string, partition int, offset long, headers array<struct<key:string,value:binary>>"
    given = [(b"/s", b"M\xfcller"), (b"/s", b"M\xf6ller"), (b"/s", b"M\xfcller"), (b"/\xfc", b"1"), (b"/\xf6", b"1"), (b"/s", b"plain"), (b"/s", b"plain")]
    rows = [
        (*(raw.decode("utf-8", "replace") for raw in one), "log", 0, n, [(k, bytearray(v)) for k, v in zip(("ce_source", "ce_id"), one, strict=True)])
        for n, one in enumerate(given)
    ]
    spark.createDataFrame(rows, columns).coalesce(1).write.parquet(str(tmp_path / "log"))
    offsets = list[int]()

    stream = _each_once(spark.readStream.schema(columns).parquet(str(tmp_path / "log")), "7 days").writeStream.trigger(availableNow=True)
    stream.foreachBatch(lambda batch, _: offsets.extend(row.offset for row in batch.collect())).start().awaitTermination()

    assert sorted(offsets) == [0, 1, 3, 4, 5]


def test_columns_of_any_type_call_different_rows_differently(spark: Any) -> None:
    given = [(bytearray(b"\xff-"), bytearray(b"b"), ["c"]), (bytearray(b"\xff"), bytearray(b"-b"), ["c"]),
             (bytearray(b"\xfe"), bytearray(b"-b"), ["c"]), (bytearray(b"\xfe"), None, ["-b"])]  # fmt: skip
    rows = spark.createDataFrame(given, "x binary, y binary, z array<string>")
    plain = spark.createDataFrame([(-1, "a\\-b", "2026-03-01"), (1, "a", None)], "n int, s string, d string").selectExpr("n", "s", "date(d) as d")

    found = {bytes(row[0]) for row in rows.select(_identifier(rows, ["x", "y", "z"]).cast("binary")).collect()}

    assert len(found) == len(given)
    assert [row[0] for row in plain.select(_identifier(plain, ["n", "s", "d"])).collect()] == [r"-1-a\\\-b-2026-03-01", r"1-a-\N"]


@pytest.mark.parametrize("kind", ["array<string>", "struct<a:string,b:string>", "map<string,string>"])
def test_nested_columns_call_different_rows_differently(spark: Any, kind: str) -> None:
    """As texts of Spark they are alike where a comma, or the word null, stands in one of them."""
    of_kind = {
        "array<string>": [["a, b"], ["a", "b"], ["null"], [None], []],
        "struct<a:string,b:string>": [("x, y", "z"), ("x", "y, z"), ("null", "z"), (None, "z")],
        "map<string,string>": [{"a": "b, c -> d"}, {"a": "b", "c": "d"}, {"a": "null"}, {"a": None}],
    }[kind]
    rows = spark.createDataFrame([(one, "-") for one in of_kind], f"x {kind}, y string")

    for names in (["x"], ["x", "y"]):
        assert len({row[0] for row in rows.select(_identifier(rows, names)).collect()}) == len(of_kind)
    assert spark.createDataFrame([(None,)], f"x {kind}").select(_identifier(rows, ["x"])).head()[0] is None


def records(spark: Any, topic: str, *given: tuple[bytes | None, bytes, list[tuple[str, bytes]]]) -> Any:
    """Return records of one partition as Spark's Kafka source gives them."""
    rows = [(topic, 0, offset, datetime(2026, 1, 1, tzinfo=UTC), *one) for offset, one in enumerate(given)]
    kind = "array<struct<key:string,value:binary>>"
    return spark.createDataFrame(rows, f"topic string, partition int, offset long, timestamp timestamp, key binary, value binary, headers {kind}")


def test_the_audit_takes_for_messages_what_workers_take_for_messages(spark: Any) -> None:
    """A message of the markers' type with a short key, and one that has a header whose name is not UTF-8: dead letters both."""
    place, rules = LogPartition("orders", 0), Rules(("cloudevents", "position"), "publisher", {"orders": b"i" * 16})
    short = [("ce_id", b"a"), ("ce_type", b"relay.outcome"), ("ce_relaycapture", b"abc".hex().encode())]
    unread = [("caf\ufffd", b"x"), ("ce_id", b"b"), ("ce_source", b"/s"), ("ce_relaycapture", b"00" * 16)]
    frame = records(spark, "orders", (b"abc", b"{}", short), (None, b"{}", unread))

    found = facts.log_facts(frame, [place], rules).orderBy("pos").collect()

    assert [(row.kind, row.capture) for row in found] == [(facts.MESSAGE, None)] * 2
    assert bytes(found[1].digest) == identity.position_digest(b"i" * 16, 0, 1), "so its dead letter is called"


OUT = LogPartition("billing", 0)
VERDICTS: dict[str, tuple[list[tuple[int, int]], tuple[int, int] | None, str]] = {
    "delivered": ([(judging.CAPTURED, 1), (judging.EFFECT, 9)], None, "right"),
    "delivered beside a letter": ([(judging.CAPTURED, 1), (judging.EFFECT, 9), (judging.PUT_ASIDE, 0)], None, judging.SECOND),
    "passed": ([(judging.CAPTURED, 9)], None, "lost_passed"),
    "the position": ([(judging.CAPTURED, 10)], None, "unseen"),
    "the first of a partition without a position": ([(judging.CAPTURED, 1 << PLACE_SHIFT)], None, "unseen"),
    "begun, first": ([(judging.CAPTURED, 12)], None, "in_doubt"),
    "begun, last": ([(judging.CAPTURED, 14)], None, "in_doubt"),
    "behind what was begun": ([(judging.CAPTURED, 15)], None, "unseen"),
    "entered": ([(judging.CAPTURED, 1)], (DELIVERED, 1), "lost_entered"),
    "entered, and the position": ([(judging.CAPTURED, 19)], (DELIVERED, 19), "lost_entered"),
    "entered as a person said, first": ([(judging.CAPTURED, 20)], (DELIVERED, 20), "told"),
    "entered as a person said, last": ([(judging.CAPTURED, 21)], (DELIVERED, 21), "told"),
    "entered behind what a person said": ([(judging.CAPTURED, 22)], (DELIVERED, 22), "lost_entered"),
    "not entered, though a person said so": ([(judging.CAPTURED, 20 + 1)], None, "unseen"),
    "dead": ([(judging.CAPTURED, 1), (judging.PUT_ASIDE, 0)], (DEAD, 1), "put_aside"),
    "a letter, and not entered": ([(judging.CAPTURED, 1), (judging.PUT_ASIDE, 0)], None, "put_aside"),
    "a letter beside a delivery": ([(judging.CAPTURED, 1), (judging.PUT_ASIDE, 0)], (DELIVERED, 1), "lost_entered"),
    "dead without a letter": ([(judging.CAPTURED, 1)], (DEAD, 1), "lost_dead"),
    "dead, and its letter forgotten": ([(judging.CAPTURED, 1)], (DEAD, 1), "put_aside"),
    "dying": ([(judging.CAPTURED, 1), (judging.DYING, 1)], (DEAD, 1), "unseen"),
    "redriven": ([(judging.CAPTURED, 1), (judging.REDRIVEN, 0)], (DEAD, 1), "unseen"),
    "redriven and delivered": ([(judging.CAPTURED, 1), (judging.REDRIVEN, 0)], (DELIVERED, 1), "lost_entered"),
    "skipped": ([(judging.CAPTURED, 1)], (SKIPPED, 1), "skipped"),
    "an effect of an undecided capture": ([(judging.UNDECIDED, 1), (judging.EFFECT, 9)], None, "undecided"),
    "an effect of an aborted capture": ([(judging.TAKEN_BACK, 1), (judging.EFFECT, 9)], None, "phantom_aborted"),
    "an aborted capture": ([(judging.TAKEN_BACK, 1)], None, "none"),
    "an effect of nothing": ([(judging.EFFECT, 9)], None, "phantom"),
    "an effect from before what is remembered": ([(judging.EFFECT, 4)], None, "forgotten"),
    "the first effect that is remembered": ([(judging.EFFECT, 5)], None, "phantom"),
    "an old effect with a death": ([(judging.EFFECT, 4)], (DEAD, 1), "phantom"),
    "an effect of what left the log": ([(judging.EFFECT, 9)], (DELIVERED, 1), "expired"),
    "an effect of what the log should have": ([(judging.EFFECT, 9)], (DELIVERED, 2), "phantom"),
    "another route's effect": ([(judging.EFFECT, 9)], None, "of_others"),
    "a former route's effect": ([(judging.EFFECT, 9)], None, "expired"),
}  # fmt: skip
"""What is known of a message (side and place of each fact, outcome and offset of its entry), and the verdict."""


def test_each_verdict_follows_from_what_is_known(spark: Any) -> None:
    log = LogPartition("orders", 0)
    names = {name.encode(): name for name in VERDICTS}
    sides = [(side, name.encode(), pos) for name, (some, _, _) in VERDICTS.items() for side, pos in some]
    found = spark.createDataFrame(sides, "side int, digest binary, pos long")
    columns = ", ".join(judging._ENTRY).split(", ")
    entries = [
        (name.encode(), dict(zip(columns, (0, 1, said[0], "orders", 0, said[1], -1, 0, None), strict=True)))
        for name, (_, said, _) in VERDICTS.items() if said is not None
    ]  # fmt: skip
    kind = ",".join(f"{name}:{of}" for name, of in judging._ENTRY.items())
    entered = spark.createDataFrame(entries, f"digest binary, entry struct<{kind}>")
    standing = judging.Standing(
        [log, LogPartition("orders", 1)], {log: 10}, {log: 2}, [InputRange("orders", 0, 12, 15), InputRange("gone", 0, 0, 99)],
        [InputRange("orders", 0, 20, 22)], {OUT: 5}, [OUT],
    )  # fmt: skip
    others = spark.createDataFrame([(b"another route's effect", False), (b"a former route's effect", True)], "digest binary, former boolean")
    second = spark.createDataFrame([(b"delivered beside a letter", judging.SECOND)], "digest binary, beside string")
    forgotten = spark.createDataFrame([(b"dead, and its letter forgotten", True)], "digest binary, forgotten boolean")
    met = judging.meet([judging.sided(found, functions.col("side"))])

    judged = judging.judge(met, entered, standing, others, second, forgotten).cache()
    counted = judging.counts(judged, functions.lit(0)).collect()[0].asDict()

    assert {names[bytes(row.digest)]: row.verdict for row in judged.collect()} == {name: verdict for name, (_, _, verdict) in VERDICTS.items()}
    verdicts = Counter(verdict for _, _, verdict in VERDICTS.values())
    assert {name: counted[name] for name in judging.COUNTED if counted.get(name)} == {
        "captured": sum((judging.CAPTURED in dict(some)) for some, _, _ in VERDICTS.values()), "delivered": 2, "duplicates": 1,
        "lost": sum(count for verdict, count in verdicts.items() if verdict.startswith("lost")), "phantoms": 5, "aborted": 2,
        "in_doubt": 3, "dead_letters": 4, "unseen": verdicts["unseen"], "expired": 2, "skipped": 1, "told": 2, "forgotten": 1,
    }  # fmt: skip


def test_what_was_altered_and_how_long_it_took_is_counted(spark: Any) -> None:
    given = [(judging.CAPTURED, b"a", 1, 7, 10), (judging.EFFECT, b"a", 1, 7, 11), (judging.CAPTURED, b"b", 2, 7, 10), (judging.EFFECT, b"b", 2, 8, 13)]
    found = spark.createDataFrame(given, "side int, digest binary, pos long, content long, s long").selectExpr("*", "timestamp_seconds(s) as at")
    met = judging.meet([judging.sided(found, functions.col("side"))])
    place = LogPartition("orders", 0)

    (row,) = judging.counts(judging.judge(met, None, judging.Standing([place], {}, {})), functions.lit(0)).collect()

    assert (row.altered, row.delivered, row.delays) == (1, 2, [1000, 3000])


def test_how_its_capture_ended_says_what_a_message_is(spark: Any) -> None:
    messages = spark.createDataFrame([(one, one) for one in (b"yes", b"no", b"unknown", b"not asked")], "digest binary, capture binary")
    outcomes = spark.createDataFrame([(b"yes", "committed"), (b"no", "aborted"), (b"unknown", None)], "capture binary, outcome string")

    found, nothing = judging.ended(messages, outcomes).collect(), judging.ended(messages, None).collect()

    assert {bytes(row.digest): row.side for row in found} == {
        b"yes": judging.CAPTURED, b"no": judging.TAKEN_BACK, b"unknown": judging.UNDECIDED, b"not asked": judging.UNDECIDED,
    }  # fmt: skip
    assert {row.side for row in nothing} == {judging.UNDECIDED}


def test_repeats_that_differ_or_lie_elsewhere_are_told(spark: Any) -> None:
    """Of the first record's content another one, and in another partition than the first."""
    elsewhere = 1 << PLACE_SHIFT
    given = [(b"a", 1, 7), (b"a", 2, 7), (b"b", 3, 7), (b"b", 4, 8), (b"c", 5, 7), (b"c", elsewhere, 7)]
    facts_of_log = spark.createDataFrame(given, "digest binary, pos long, content long").withColumn("at", functions.lit(None).cast("timestamp"))
    met = judging.meet([judging.sided(facts_of_log, judging.CAPTURED)])

    odd = judging.conflicts(met, facts_of_log).where("conflict or elsewhere").collect()

    assert {(row.pos, row.conflict, row.elsewhere) for row in odd} == {(4, True, False), (elsewhere, False, True)}
    assert {bytes(row.digest): (row.records, row.log.pos) for row in met.collect()} == {b"a": (2, 1), b"b": (2, 3), b"c": (2, 5)}


def test_an_effect_of_what_died_before_it_left_the_log_is_a_phantom(spark: Any) -> None:
    place = LogPartition("orders", 0)
    effects = spark.createDataFrame([(b"dead", 1), (b"done", 2)], "digest binary, pos long")
    entry = "replay short, entry_order long, outcome short, log_topic string, log_partition int, log_offset long, at long, home int"
    entered = spark.createDataFrame(
        [(name, (0, 1, outcome, "orders", 0, 5, -1, 0, None)) for name, outcome in ((b"dead", DEAD), (b"done", DELIVERED))],
        f"digest binary, entry struct<{entry.replace(' ', ':').replace(',:', ',')},transaction:string>",
    )
    standing = judging.Standing([place], {place: 9}, {place: 9})

    judged = judging.judge(judging.meet([judging.sided(effects, judging.EFFECT)]), entered, standing).collect()

    assert {bytes(row.digest): row.verdict for row in judged} == {b"dead": "phantom", b"done": "expired"}


def test_what_the_monitor_says_was_redriven_is_not_late(spark: Any) -> None:
    log = spark.createDataFrame([(b"a", 0, 7, 1), (b"b", 1, 7, 1), (b"c", 2, 7, 1)], "digest binary, pos long, content long, lane long")
    effects = spark.createDataFrame([(b"c", 0), (b"a", 1), (b"b", 2)], "digest binary, pos long")
    pages = spark.createDataFrame([(b"a", 0), (b"a", 1), (b"b", 0)], "digest binary, replay int")

    late = judging.lapses(judging.meet([judging.sided(log, judging.CAPTURED), judging.sided(effects, judging.EFFECT)]))

    assert sorted(bytes(row.digest) for row in late.collect()) == [b"a", b"b"]
    assert [bytes(row.digest) for row in judging.not_redriven(late, pages).collect()] == [b"b"]
