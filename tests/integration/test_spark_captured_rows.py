"""What `relay spark capture` makes of files: names, types and values of columns as they are there. One session without a broker."""

from __future__ import annotations

import csv
import json
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from relay.jobs.following import Following
from relay.jobs.session import refused
from relay.message.errors import ConfigError
from spark import capture
from spark.capture import _messages, _parse, _read_files
from tests.integration import test_spark_frames

spark = test_spark_frames.spark
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def captured(spark: Any, folder: Path, *arguments: str) -> list[Any]:
    """Return the messages of the files in a folder, as the job's batches have them."""
    options = _parse(["relay.toml", str(folder), "--topic", "log", "--name", "drops", *arguments])
    rows = list[Any]()
    stream = _messages(_read_files(spark, options), options, 2).writeStream.trigger(availableNow=True)
    query = stream.foreachBatch(lambda batch, _: rows.extend(batch.collect())).start()
    query.awaitTermination()
    return rows


def test_a_column_is_called_what_its_file_calls_it(spark: Any, tmp_path: Path) -> None:
    """Spark takes a dot for a way into a struct, and a backtick for the edge of a name."""
    (tmp_path / "prices.csv").write_text("item.no,price.eur,`note,Größe\n7,2.5,x,9\n", "utf-8")

    found = captured(spark, tmp_path, "--id", "item.no,`note", "--key", "`note", "--order-by", "price.eur", "--source", "/{item.no}")

    assert [json.loads(row.value) for row in found] == [{"item.no": 7, "price.eur": 2.5, "`note": "x", "Größe": 9}]
    assert [(row.id, bytes(row.key), row.source, row.order_0) for row in found] == [("7-x", b"x", "/7", 2.5)]


@pytest.mark.parametrize("schema", [None, "n int, text string, last string"], ids=["found", "given"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_quoted_field_is_captured_as_a_writer_of_csv_meant_it(spark: Any, tmp_path: Path, end: str, schema: str | None) -> None:
    """Spark ends a record at a line break within quotes, and each half was a record where it had the fields; a quote it escapes by a backslash."""
    texts = ["one,2", '7,"7\n8,8', 'say "ho"', '"', "C:\\new\\", '\\"', "a\nb", " spaced ", "ä", "'", "#no comment", "x"]
    rows = [[str(number), text, text] for number, text in enumerate(texts)]
    with (tmp_path / "drop.csv").open("w", encoding="utf-8", newline="") as drop:
        csv.writer(drop, lineterminator=end).writerows([["n", "text", "last"], *rows])
    given = ("--schema", schema) if schema else ()

    found = captured(spark, tmp_path, "--id", "n", *given)

    assert sorted((json.loads(row.value) for row in found), key=lambda row: row["n"]) == [
        {"n": number, "text": text, "last": text} for number, text in enumerate(texts)
    ]


def test_a_quote_may_be_escaped_by_a_backslash(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "drop.csv").write_text('n,text\n1,"say \\"ho\\""\n', "utf-8")

    assert [json.loads(row.value) for row in captured(spark, tmp_path, "--id", "n", "--escape", "\\")] == [{"n": 1, "text": 'say "ho"'}]


def test_a_times_microseconds_are_captured(spark: Any, tmp_path: Path) -> None:
    moments = "timestamp'1969-12-31 23:59:59.999999Z' as at", "timestamp_ntz'2024-01-01 00:00:00.123456' as local", "struct(timestamp'2024-01-01 00:00:00Z' as t) as deep"
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.sql(f"select 1 as n, {', '.join(moments)}").write.parquet(str(tmp_path / "rows"))

    found = captured(spark, tmp_path / "rows", "--format", "parquet", "--id", "n")

    assert [json.loads(row.value) for row in found] == [
        {"n": 1, "at": "1969-12-31T23:59:59.999999Z", "local": "2024-01-01T00:00:00.123456", "deep": {"t": "2024-01-01T00:00:00.000000Z"}}
    ]


def test_a_column_that_only_some_parquet_files_have_is_captured(spark: Any, tmp_path: Path) -> None:
    """Spark asks one file, and reads of the others what that one has."""
    for number, more in enumerate(("'a' as first", "'b' as second")):
        spark.sql(f"select {number} as n, {more}").write.parquet(str(tmp_path / f"rows/part={number}"))

    found = captured(spark, tmp_path / "rows", "--format", "parquet", "--id", "n")

    assert sorted((json.loads(row.value) for row in found), key=lambda one: int(one["n"])) == [
        {"n": 0, "first": "a", "second": None, "part": 0}, {"n": 1, "first": None, "second": "b", "part": 1},
    ]  # fmt: skip


@pytest.mark.parametrize(("form", "content", "schema"), [("csv", "n\n7\n", "n int, part int"), ("json", '{"n": 7}\n', None), ("csv", "n\n7\n", None)])
def test_a_folder_is_read_whatever_its_name(spark: Any, tmp_path: Path, form: str, content: str, schema: str | None) -> None:
    """Spark takes it for a pattern that matches nothing: a run with a schema captured no row, and ended as if there were none."""
    folder = tmp_path / "drops [new] {1}*?" / "part=3"
    folder.mkdir(parents=True)
    (folder / f"a b.{form}").write_text(content, "utf-8")
    finds_none = form == "csv" and schema is None

    with pytest.raises(ConfigError, match=r"finds no columns of CSV .* give --schema") if finds_none else nullcontext():
        found = captured(spark, folder.parent, "--format", form, "--id", "n", *(("--schema", schema) if schema else ()))
        assert [json.loads(row.value) for row in found] == [{"n": 7, "part": 3}]


@pytest.mark.parametrize(("form", "content", "schema", "said"), [
    ("json", '{"n": 1}\n{"n": \n', None, "no json files are there whose columns could be read, or one cannot be read"),
    ("parquet", "PAR1", None, "no parquet files are there whose columns could be read, or one cannot be read"),
    ("csv", "n\n1\n", "n int oops not", "--schema n int oops not"),
])  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(spark: Any, tmp_path: Path, form: str, content: str, schema: str | None, said: str) -> None:
    (tmp_path / f"drop.{form}").write_text(content, "utf-8")
    given = ("--schema", schema) if schema else ()

    with pytest.raises(ConfigError, match=said):
        captured(spark, tmp_path, "--format", form, "--id", "n", *given)


@pytest.mark.parametrize(("rows", "schema", "refused"), [
    (["007,a", "7,a"], None, r'rows with \["007","a"\] and \["7","a"\] would both be called \["7","a"\]'),
    (["1.10,a", "1.1,a", "2,a"], None, r'\["1.1","a"\] and \["1.10","a"\]'),
    ([f"{'1' * 40},a", f"{'1' * 39}2,a"], None, "would both be called"),
    (["007,a", "7,b", "8,b", "8,b"], None, None),
    (["007,a", "7,a"], "`item.no` string, shop string", None),
    (["2026-01-01T00:00:00.123456789,a", "2026-01-01T00:00:00.123456788,a"], None, r'would both be called \["2026-01-01 00:00:00.123456","a"\]'),
    (["2026-03-29,a", "2026-03-29 00:00:00,a"], None, "would both be called"),
    (["TRUE,a", "true,a"], None, r'would both be called \["true","a"\]'),
    (["2026-01-01T00:00:00Z,a", "2026-01-01T00:00:00.000001Z,a", "2026-01-01T00:00:00Z,b"], None, None),
])  # fmt: skip
def test_ids_that_differ_in_a_file_are_never_one(
    spark: Any, tmp_path: Path, rows: list[str], schema: str | None, refused: str | None
) -> None:
    """Spark takes them for numbers, times or truths: the second row was a repeat of the first, and dropped by the relay."""
    (tmp_path / "drop.csv").write_text("\n".join(["item.no,shop", *rows]), "utf-8")
    given = ("--id", "item.no,shop", *(("--schema", schema) if schema else ()))

    if refused is not None:
        with pytest.raises(ConfigError, match=refused):
            captured(spark, tmp_path, *given)
    else:
        assert len({row.id for row in captured(spark, tmp_path, *given)}) == len({*rows})


def test_ids_of_json_that_one_double_stands_for_are_refused(spark: Any, tmp_path: Path) -> None:
    """A double has some 16 of their digits, and of the two rows one was dropped by the relay."""
    (tmp_path / "drop.json").write_text('{"n": 0.12345678901234567891}\n{"n": 0.12345678901234567892}\n', "utf-8")

    with pytest.raises(ConfigError, match="would both be called"):
        captured(spark, tmp_path, "--format", "json", "--id", "n")
    assert len({row.id for row in captured(spark, tmp_path, "--format", "json", "--id", "n", "--schema", "n string")}) == 2


def test_ids_that_are_not_utf8_are_refused(spark: Any, tmp_path: Path) -> None:
    """Spark reads all their letters as one, and of the two rows one was dropped by the relay."""
    text = "n,m\nMüller,ä\nMäller,ö\n"
    (tmp_path / "drop.csv").write_text(text, "latin-1")

    with pytest.raises(StreamingQueryException, match="column n, of --id, has bytes in a row that are not UTF-8"):
        captured(spark, tmp_path, "--id", "n")
    (tmp_path / "drop.csv").write_text(text, "utf-8")
    assert {row.id for row in captured(spark, tmp_path, "--id", "n")} == {"Müller", "Mäller"}


def test_the_rows_of_a_table_are_counted_as_they_are_captured(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were counted by reading the table once more, which may have others by then."""
    (tmp_path / "1.json").write_text('{"n": 1}\n{"n": 2}\n', "utf-8")

    def captured_beside_a_writer(batch: Any, *_: Any) -> bool:
        batch.write.format("noop").mode("append").save()
        (tmp_path / "1.json").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n', "utf-8")
        return True

    monkeypatch.setattr(capture, "_capture", captured_beside_a_writer)
    config: Any = None

    assert capture._capture_table(spark.read.schema("n int").json(str(tmp_path)), config, Namespace(table="t")) == 2
    monkeypatch.setattr(capture, "_capture", lambda *_: False)
    assert capture._capture_table(spark.read.schema("n int").json(str(tmp_path)), config, Namespace(table="t")) is None


@pytest.mark.parametrize("of", ["files", "a table"])
def test_what_is_wrong_with_a_row_is_said_in_a_sentence(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """It was a traceback; of files that one's beginning, with the advice to run the job again."""
    (tmp_path / "1.json").write_text('{"n": 1}\n', "utf-8")
    nameless = "raise_error('column id is null; give each row an id')"
    monkeypatch.setattr(capture, "_capture", lambda batch, *_: batch.selectExpr(nameless).write.format("noop").mode("append").save())
    config: Any = None

    def of_files() -> None:
        rows = spark.readStream.schema("n int").json(str(tmp_path))
        following = Following("drops", checkpoint=tmp_path / "checkpoint", trigger_s=None)
        following.capture(rows, lambda batch, _: capture._capture(batch, 0, config, Namespace()))

    def of_a_table() -> None:
        capture._capture_table(spark.read.schema("n int").json(str(tmp_path)), config, Namespace(table="goods"))

    with pytest.raises(ConfigError, match=r"^(query drops|capturing goods) failed: column id is null; give each row an id$"):
        (of_files if of == "files" else of_a_table)()


def test_a_row_that_is_too_large_is_not_to_be_tried_again() -> None:
    """As the client says it, of a row of three megabytes."""
    said = "RecordTooLargeException: The message is 3000262 bytes when serialized which is larger than 1048576, which is the value of max.request.size."

    refusal = refused("query drops", said)

    assert refusal is not None
    assert "query drops failed: a row is larger than what Spark's client sends or the topic takes" in str(refusal)
    assert refused("query drops", "TimeoutException: Topic log not present in metadata after 60000 ms.") is None
