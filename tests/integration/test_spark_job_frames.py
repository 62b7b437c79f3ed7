"""What the jobs join and where they archive, held against plain Python: one session without a broker."""

from __future__ import annotations

import json
import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions

from relay.capture.decisions import Attempt, UnitDecision, UnitDecisions, batch_unit
from relay.jobs.following import Following, refuse_lost_checkpoint
from relay.jobs.session import hide_keys
from relay.message.errors import ConfigError, Unreachable
from relay.spark import batches, following
from spark.archive import PERIODS, refuse_another_archive
from spark.capture import refuse_name_of_files
from spark.correlate import _as_json, _joining, _parse, _parts, _refuse_another_join
from tests.integration import test_spark_frames

spark = test_spark_frames.spark
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_what_only_begins_as_json_is_a_text_of_a_joined_message(spark: Any) -> None:
    """Spark reads one value of a text and looks at nothing behind it: as such the message was none, or had other parts."""
    texts = ["42 apples", "true story", '{"a": 1} {"b": 2}', '{"a": 1}, "weather": {"wind": 9}', "{} ] x", "1], [2", "1, 2", "", "nul"]
    values = ['{"a": [1, {"b": null}]}', ' "x"\n', "[]", "-1.5e3", "true", "null"]
    frame = spark.createDataFrame([(one,) for one in texts + values], "value string")

    found = [row[0] for row in frame.select(_as_json(functions.col("value"))).collect()]

    assert [json.loads(one) for one in found] == texts + [json.loads(one) for one in values]


def test_what_is_not_utf8_leaves_a_joined_message_json(spark: Any) -> None:
    """JSON in Latin-1 stood in it as it was: nobody could read the other topics' parts either."""
    frame = spark.createDataFrame([('{"name": "Müller"}'.encode("latin-1"),), ('{"name": "Müller"}'.encode(),)], "value binary")

    found = [bytes(row[0]) for row in frame.select(_as_json(functions.col("value").cast("string")).cast("binary")).collect()]

    assert [json.loads(one) for one in found] == ['{"name": "M\ufffdller"}', {"name": "Müller"}]


def test_a_pointer_finds_what_json_pointers_find(spark: Any) -> None:
    value = {"a/b": 1, "~": 2, "d.e": 3, "items": [4, {"x": 5}], "n": {"0": 6}}
    frame = spark.createDataFrame([(json.dumps(value),)], "value string")

    def joined(on: str) -> Any:
        return frame.select(_joining(on)).collect()[0][0]

    assert [joined(on) for on in ("/a~1b", "/~0", "/d.e", "/items/0", "/items/1/x", "/n/0")] == ["1", "2", "3", "4", "5", "6"]
    assert json.loads(joined("/a~1b,/n/0")) == ["1", "6"]
    assert joined("/none,/n/0") is None
    for on in ("origin", "", "/", "/o'clock", "/*"):
        with pytest.raises(ConfigError, match="--on"):
            joined(on)


def test_a_join_keeps_what_it_joins_by(spark: Any, tmp_path: Path) -> None:
    """Spark takes another window, and looks in the state for what waits there under the one before: it found no partner."""

    def run(*given: str) -> None:
        options = _parse(["relay.toml", "--topic", "a", "--topic", "b", "--to", "c", "--name", "ab", *given])
        _refuse_another_join(spark, tmp_path / "progress", options)

    run("--window", "60", "--on", "/n")
    run("--window", "60", "--on", "/n", "--watermark", "5", "--outer")
    for given, said in ((("--window", "120", "--on", "/n"), "--window 120: ab has joined with 60"), (("--window", "60"), "--on key: ab has joined with /n")):
        with pytest.raises(ConfigError, match=said):
            run(*given)
    run("--window", "60", "--on", "/n")


def test_sparks_pages_and_event_logs_hide_a_private_key_among_a_writers_options(spark: Any) -> None:
    """Spark hides what has password, secret or token in it, and an unencrypted key has none of these words."""
    key = {"kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\nunencrypted\n-----END PRIVATE KEY-----"}
    options = {"url": "jdbc:none", "dbtable": "plain", **key}  # written in Spark's plans as those of the Kafka sink are
    hide_keys(spark)
    hide_keys(spark)

    with pytest.raises(Exception, match="No suitable driver"):
        spark.createDataFrame([("v",)], "value string").write.format("jdbc").options(**options).save()

    shown = spark._jsparkSession.sharedState().statusStore().executionsList()
    plan = shown.apply(shown.size() - 1).physicalPlanDescription()
    assert "dbtable=plain" in plan
    assert "unencrypted" not in plan
    assert spark.conf.get("spark.sql.redaction.options.regex") == "(?i)url|PRIVATE KEY-----"


class TestArchive:
    """An archive whose checkpoint, or whose periods, are other ones than before."""

    @staticmethod
    def archived(spark: Any, place: Path, number: int, by: str = "day") -> list[str]:
        """Archive a further record; return what readers find then."""
        (place / "log").mkdir(parents=True, exist_ok=True)
        row = {"topic": "t", "date": "2026-01-01", "hour": number, "value": str(number)}
        (place / "log" / f"{number}.json").write_text(json.dumps(row), "utf-8")
        rows = spark.readStream.schema("topic string, date date, hour int, value string").json(str(place / "log"))
        writer = rows.writeStream.format("parquet").option("path", str(place / "to")).option("checkpointLocation", str(place / "progress"))
        writer.partitionBy(*PERIODS[by]).trigger(availableNow=True).start().awaitTermination()
        return sorted(row.value for row in spark.read.parquet(str(place / "to")).collect())

    def test_a_checkpoint_that_went_back_is_refused(self, spark: Any, tmp_path: Path) -> None:
        to, progress, older = str(tmp_path / "to"), tmp_path / "progress", tmp_path / "older"
        refuse_another_archive(spark, to, "day", progress)
        self.archived(spark, tmp_path, 1)
        shutil.copytree(progress, older)
        assert self.archived(spark, tmp_path, 2) == ["1", "2"]
        refuse_another_archive(spark, to, "day", progress)
        shutil.rmtree(progress)
        older.rename(progress)

        with pytest.raises(ConfigError, match=r"it has batch 1 by now, and .* ends with batch 0"):
            refuse_another_archive(spark, to, "day", progress)

        assert self.archived(spark, tmp_path, 3) == ["1", "2"], "Spark has skipped what came, and called it done"

    def test_an_archive_that_was_removed_or_put_back_is_refused(self, spark: Any, tmp_path: Path) -> None:
        """Its checkpoint goes on behind what it had, and that was called archived."""
        to, progress, older = tmp_path / "to", tmp_path / "progress", tmp_path / "older"
        self.archived(spark, tmp_path, 1)
        shutil.copytree(to, older)
        (tmp_path / "log" / "none.json").touch()  # a batch without a row, as one of nothing but Kafka's own markers
        self.archived(spark, tmp_path, 2)
        refuse_another_archive(spark, str(to), "day", progress)
        shutil.rmtree(to)

        with pytest.raises(ConfigError, match=r"to: it has no batch by now, and .*progress has written there up to batch 1"):
            refuse_another_archive(spark, str(to), "day", progress)

        older.rename(to)
        with pytest.raises(ConfigError, match=r"to: it ends with batch 0 by now, and .*progress has written there up to batch 1"):
            refuse_another_archive(spark, str(to), "day", progress)

    @pytest.mark.parametrize("began", PERIODS)
    @pytest.mark.parametrize("by", PERIODS)
    def test_an_archive_keeps_its_periods(self, spark: Any, tmp_path: Path, began: str, by: str) -> None:
        self.archived(spark, tmp_path, 1, began)

        with nullcontext() if by == began else pytest.raises(ConfigError, match=f"--by {by}: .* by {began}, .* give --by {began}"):
            refuse_another_archive(spark, str(tmp_path / "to"), by, tmp_path / "progress")

        with nullcontext() if by == began else pytest.raises(Exception, match="CONFLICTING_PARTITION_COLUMN_NAMES"):
            assert self.archived(spark, tmp_path, 2, by) == ["1", "2"]


@pytest.mark.parametrize(("decided", "has_checkpoint", "is_refused"), [
    ([], False, False), ([0], False, False), ([0, 1], False, True), ([], True, True), ([0], True, True),
])  # fmt: skip
def test_a_table_is_not_taken_for_the_first_batch_of_files_that_were_captured_under_its_name(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: list[int], *, has_checkpoint: bool, is_refused: bool
) -> None:
    """Nothing of it was captured, and the job said that it was done."""
    known = UnitDecisions()
    for number in decided:
        known.add(UnitDecision(batch_unit("capture-load", number), "run", committed=True))
    monkeypatch.setattr(following, "decision_log", lambda *_: SimpleNamespace(decisions=lambda: known, close=lambda: None))
    if has_checkpoint:
        (tmp_path / "metadata").touch()
    config: Any = SimpleNamespace(relay=SimpleNamespace(name="shop"), kafka={})

    with pytest.raises(ConfigError, match="--name load: files were captured under it") if is_refused else nullcontext():
        refuse_name_of_files(spark, config, "load", tmp_path)


def test_parents_that_have_no_id_or_source_are_called_by_their_places_and_topic(spark: Any) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = [
        (b"k", b"1", 0, [("ce_id", b""), ("ce_source", b"/a")]),
        (b"k", b"2", 1, [("ce_id", b""), ("ce_source", b"")]),
        (b"k", b"3", 2, [("ce_id", b"7"), ("ce_source", b"")]),
        (b"k", b"4", 3, []),
        (b"", b"5", 4, []),
        (None, b"6", 5, []),
    ]
    schema = "key binary, value binary, offset long, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame(rows, schema).selectExpr(
        "*", "'log' as topic", "0 as partition", "timestamp_seconds(0) as timestamp"
    )

    found = _parts(frame, "log", 0, Namespace(on="key", watermark=60, window=60)).collect()

    assert [(row.source_0, row.id_0) for row in found] == [
        ("/a", "log/0/0"), ("log", "log/0/1"), ("log", "7"), ("log", "log/0/3"),
    ], "and what has no key has nothing to be joined by"  # fmt: skip


def test_a_time_far_ahead_of_its_record_is_not_believed(spark: Any) -> None:
    """One message of next year drove the watermark past all that came after it: none of those found a partner."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    times = [b"1970-01-01T00:00:00Z", b"1970-01-02T00:10:59Z", b"1970-01-02T00:11:01Z", b"2999-01-01T00:00:00Z", b"soon", None]
    rows = [(b"k", b"v", n, [("ce_time", time)] if time else []) for n, time in enumerate(times)]
    schema = "key binary, value binary, offset long, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame(rows, schema).selectExpr(
        "*", "'t' as topic", "0 as partition", "timestamp'1970-01-02 00:10:00Z' as timestamp"
    )

    found = _parts(frame, "t", 0, Namespace(on="key", watermark=60, window=60)).collect()

    own, record = ["1970-01-01T00:00:00.000Z", "1970-01-02T00:10:59.000Z"], "1970-01-02T00:10:00.000Z"
    assert [row.time_0 for row in found] == [*own, *[record] * 4]


def test_rows_that_come_behind_the_watermark_are_counted(spark: Any, tmp_path: Path) -> None:
    """They were dropped, and nobody was told."""
    (tmp_path / "in").mkdir()
    for number, hour in enumerate((12, 15, 12, 12, 15)):
        path = tmp_path / "in" / f"{number}.json"
        path.write_text(json.dumps({"at": f"2026-01-01T{hour}:00:00Z"}), "utf-8")
        os.utime(path, (number, number))
    rows = spark.readStream.schema("at timestamp").options(maxFilesPerTrigger=1, maxFileAge="36500d").json(str(tmp_path / "in"))
    counted = rows.withWatermark("at", "1 minute").groupBy(functions.window("at", "1 minute")).count()
    query = Following("late", checkpoint=tmp_path / "progress", trigger_s=None)

    query.capture(counted, lambda batch, _: batch.collect())

    assert (query.rows, query.late) == (5, 1), "the one that came first behind 15:00 was in time for its batch, Spark says"


@pytest.mark.parametrize(("decided", "is_refused"), [(None, False), (3, False), (4, True), (11, True)])
def test_a_checkpoint_that_does_not_know_a_batch_that_is_decided_is_refused(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: int | None, is_refused: bool
) -> None:
    """As one that was put back from an older copy: Spark would plan the next batch anew, and its rows would count for captured."""
    known = UnitDecisions()
    if decided is not None:
        known.add(UnitDecision(batch_unit("capture-drops", decided), "run", True, (Attempt(b"n" * 16, 1, ()),)))
    log = SimpleNamespace(decisions=lambda: known, close=lambda: None)
    monkeypatch.setattr(following, "decision_log", lambda *_: log)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").touch()
    for number in (2, 3):  # Spark has purged what was before
        (tmp_path / "offsets" / str(number)).write_text("v1\n{}\n{}", "utf-8")

    with pytest.raises(ConfigError, match="ends with batch 3, but capture-drops has captured before") if is_refused else nullcontext():
        refuse_lost_checkpoint(spark, "shop", {}, "capture-drops", tmp_path)
    with pytest.raises(ConfigError, match="is new, but") if decided is not None else nullcontext():
        refuse_lost_checkpoint(spark, "shop", {}, "capture-drops", tmp_path / "another")


def test_a_batch_for_a_topic_of_the_relays_own_is_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "check_topics", lambda *_: {"shop.decisions": 1})
    rows = spark.createDataFrame([(b"1", "a")], "value binary, id string")

    with pytest.raises(ConfigError, match=r"topic shop\.decisions: a topic of the relay's own is not a log"):
        batches.capture_batch(rows, 7, relay="shop", topic="shop.decisions", kafka={"bootstrap.servers": "127.0.0.1:1"}, query="q")


@pytest.mark.parametrize(("columns", "said"), [
    (["value", "id", "'z' as id"], "column id is there more than once"),
    (["value", "array(id, value) as id"], r"column id is array<string>, of which different ones may be written alike"),
    (["value", "timestamp_seconds(1) as id"], r"column id is timestamp, of which Europe/Berlin writes two alike"),
    (["struct(value) as value", "id"], r"column value is struct<value:string>, .*to_json"),
    (["value", "id", "7 as key"], r"column key is int; cast it to binary or string"),
])  # fmt: skip
def test_columns_that_cannot_be_written_or_call_different_rows_alike_are_refused(
    spark: Any, monkeypatch: pytest.MonkeyPatch, columns: list[str], said: str
) -> None:
    """Of two rows with the ids ["a, b"] and ["a", "b"], or 02:30 before and behind the shift of the clock, one was lost as the other's repeat."""
    monkeypatch.setattr(batches, "check_topics", lambda *_: {"orders": 1})
    monkeypatch.setattr(batches, "UnitDecider", None)  # nothing is asked of brokers before
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    rows = spark.createDataFrame([("a", "1")], "value string, id string").selectExpr(*columns)

    with pytest.raises(ConfigError, match=said):
        batches.capture_batch(rows, 7, relay="shop", topic="orders", kafka={"bootstrap.servers": "127.0.0.1:1"}, query="q")
    spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.parametrize(("told", "is_streams"), [("7", True), (None, False), ("6", False)])
def test_a_batch_is_a_streams_if_that_has_numbered_it(
    spark: Any, monkeypatch: pytest.MonkeyPatch, told: str | None, is_streams: bool
) -> None:
    class Asked(Exception):
        pass

    def decider(_: object, unit: Any, __: str, **given: bool) -> None:
        raise Asked(unit.name, given)

    monkeypatch.setattr(batches, "check_topics", lambda *_: {"orders": 1})
    monkeypatch.setattr(batches, "UnitDecider", decider)
    rows = spark.createDataFrame([(b"1", "a")], "value binary, id string")
    spark.sparkContext.setLocalProperty("streaming.sql.batchId", told)

    with pytest.raises(Asked) as asked:
        batches.capture_batch(rows, 7, relay="shop", topic="orders", kafka={"bootstrap.servers": "127.0.0.1:1"}, query="q")

    assert asked.value.args == ("q/7", {"is_streams": is_streams})
    spark.sparkContext.setLocalProperty("streaming.sql.batchId", None)


def test_a_batch_that_a_query_with_another_checkpoint_has_captured_is_not_taken_for_ones_own(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts, each with a state of its own: of two batches of one number and name only one was captured, and the other passed for done."""
    decided: dict[str, UnitDecision] = {}

    class Decider:
        def __init__(self, _: object, unit: Any, run: str, **__: bool) -> None:
            self.committed = lambda: decided.setdefault(unit.name, UnitDecision(unit, run, committed=True))

    monkeypatch.setattr(batches, "check_topics", lambda *_: {"orders": 1})
    monkeypatch.setattr(batches, "UnitDecider", Decider)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.json").write_text('{"value": "x", "id": "1"}\n', "utf-8")
    rows = spark.readStream.schema("value string, id string").json(str(tmp_path / "rows"))

    def run(name: str, behind: Callable[[], None] = lambda: None) -> None:
        def captured(batch: Any, number: int) -> bool:
            found = batches.capture_batch(batch, number, relay="shop", topic="orders", kafka={"bootstrap.servers": "127.0.0.1:1"}, query="q")
            behind()
            return found

        Following("drops", checkpoint=tmp_path / name, trigger_s=None).capture(rows, captured)

    def died() -> None:
        raise Unreachable("as Spark was to note that the batch is done")

    with pytest.raises(Unreachable):
        run("own", died)
    run("own")
    assert len(decided) == 1
    for _ in range(2):  # by now its checkpoint knows the batch
        with pytest.raises(ConfigError, match="batch 0 of q was captured by another query of this name"):
            run("second")
