"""Rows of Spark become CloudEvents, each in a partition that its key decides; what does not fit is refused first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from relay.capture.decisions import Attempt, UnitDecision, batch_unit
from relay.capture.message import partition_of
from relay.message.envelope import OUT_DIGEST, OUT_INSTANCE
from relay.message.errors import ConfigError
from relay.message.record import LogPartition
from relay.spark.batches import new_run, refuse_another_checkpoint, refuse_another_topic
from relay.spark.options import WriteOptions, check_sink, read_options
from relay.spark.rows import Labels, RowEncoder, check_schema

KIND = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
OPTIONS = WriteOptions("shop", {"bootstrap.servers": "127.0.0.1:1"}, topic="orders")
LABELS = Labels(b"c" * 16, b"decisions:q/1/run", b"/spark/q", 1)


def encoded(columns: dict[str, Any], options: WriteOptions = OPTIONS) -> tuple[RowEncoder, list[Any]]:
    encoder = RowEncoder(options, LABELS, {"orders": 4, "bills": 2}.__getitem__)
    return encoder, list(encoder.records(pa.RecordBatch.from_pydict(columns)))


def test_a_row_becomes_a_cloud_event_of_its_attempt() -> None:
    encoder, records = encoded({"key": ["a", None], "value": ["x", "y"]})

    topic, partition, key, value, headers = records[0]
    assert (topic, partition, key, value) == ("orders", partition_of(b"a", 4), b"a", b"x")
    assert dict(headers) == {
        "ce_specversion": b"1.0", "ce_source": b"/spark/q", "ce_type": b"relay.message",
        "ce_id": LABELS.capture.hex().encode() + b"-0",
        "ce_relaycapture": LABELS.capture.hex().encode(), "ce_relayresource": b"decisions:q/1/run",
    }  # fmt: skip
    assert records[1][1] == 1
    assert (encoder.rows, encoder.places) == (2, {LogPartition("orders", partition_of(b"a", 4)), LogPartition("orders", 1)})


def test_ids_go_on_from_batch_to_batch() -> None:
    encoder, first = encoded({"value": ["x", "y"]})
    second = list(encoder.records(pa.RecordBatch.from_pydict({"value": ["z"]})))

    assert [dict(row[4])["ce_id"].rpartition(b"-")[2] for row in first + second] == [b"0", b"1", b"2"]


def test_columns_decide_before_options_and_a_gap_falls_back() -> None:
    _, records = encoded(
        {
            "value": [b"x", b"y"], "topic": ["bills", None], "partition": pa.array([1, None], pa.int32()),
            "key": [b"k", b"k"], "id": ["1", "2"], "type": ["paid", None], "subject": [None, "s"],
        }
    )  # fmt: skip

    assert [row[:2] for row in records] == [("bills", 1), ("orders", partition_of(b"k", 4))]
    assert [dict(row[4])["ce_type"] for row in records] == [b"paid", b"relay.message"]
    assert [dict(row[4]).get("ce_subject") for row in records] == [None, b"s"]
    assert [dict(row[4])["ce_id"] for row in records] == [b"1", b"2"]


def test_a_rows_own_headers_cannot_steer_the_relay() -> None:
    rows = [[("ce_relaycapture", b"f"), (OUT_DIGEST, b"f"), (OUT_INSTANCE, b"f"), ("ce_id", b"own"), ("traceparent", b"t")], None]
    headers = pa.array([[{"key": k, "value": v} for k, v in row] if row else None for row in rows], KIND)

    _, records = encoded({"value": ["x", "y"], "headers": headers})
    _, firm = encoded({"value": ["x", "y"], "headers": headers, "id": ["1", "2"]})

    assert dict(records[0][4])["ce_relaycapture"] == LABELS.capture.hex().encode()
    assert not {OUT_DIGEST, OUT_INSTANCE} & dict(records[0][4]).keys(), "a settlement would take it for a relay's output"
    assert dict(records[0][4])["ce_id"] == b"own"
    assert dict(records[0][4])["traceparent"] == b"t"
    assert dict(firm[0][4])["ce_id"] == b"1"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ce_relaypriority", b"10", "'10' is not a number from 0 to 9"),
        ("ce_relaydelay", b"60s", "'60s' is not a number"),
        ("ce_expirytime", b"tomorrow", "'tomorrow' is not a time with its zone"),
        ("ce_relaymode", b"all", "'all' is none of"),
        ("ce_relayaudience", b"ann,", "'ann,' lacks a name"),
        ("ce_subject", b"\xff", r"'\\xff' is not UTF-8 text"),
        ("ce_id", b"a\0b", r"'a\x00b' holds a zero character"),
    ],
)
def test_a_rows_header_that_no_queue_could_read_is_refused(name: str, value: bytes, words: str) -> None:
    headers = pa.array([None, [{"key": "tenant", "value": None}, {"key": name, "value": value}]], KIND)
    with pytest.raises(ConfigError) as refused:
        encoded({"value": ["x", "y"], "headers": headers})

    assert str(refused.value).startswith(f"column headers: {name} = {words}")
    _, records = encoded({"value": ["x"], "headers": pa.array([[{"key": name, "value": None}]], KIND)})
    assert ((name, None) in records[0][4]) == (name != "ce_id"), "a header without a value asks for nothing"


def test_a_rows_header_whose_name_the_client_would_cut_is_refused() -> None:
    """It cuts it at a NUL: this one stood behind the row's own capture, so that the row never counted."""
    headers = pa.array([[{"key": "ce_relaycapture\0x", "value": b"f"}]], KIND)

    with pytest.raises(ConfigError, match=r"column headers: 'ce_relaycapture\\x00x' is no name of a header"):
        encoded({"value": ["x"], "headers": headers})


def test_headers_of_a_row_that_are_null_or_without_a_name_are_left_out_and_those_without_a_value_replace_nothing() -> None:
    none = [{"key": name, "value": None} for name in ("ce_id", "ce_source", "ce_type", "note")]
    headers = pa.array([[None, {"key": None, "value": b"x"}, *none, {"key": "tenant", "value": b"t"}]], KIND)

    _, (row,) = encoded({"value": ["x"], "headers": headers})
    _, (plain,) = encoded({"value": ["x"]})

    assert row[4] == [*plain[4], ("note", None), ("tenant", b"t")]


def test_a_nul_in_rows_beside_the_batch_refuses_nothing() -> None:
    whole = pa.RecordBatch.from_pydict({"value": ["x", "y"], "id": ["a\0b", "c"]})

    (record,) = RowEncoder(OPTIONS, LABELS, {"orders": 4}.__getitem__).records(whole.slice(1))

    assert dict(record[4])["ce_id"] == b"c"


def test_a_time_is_written_in_utc() -> None:
    moment = pa.array([1_357_000_200_000_000], pa.timestamp("us", "America/New_York"))

    _, records = encoded({"value": ["x"], "time": moment})

    assert dict(records[0][4])["ce_time"] == b"2013-01-01T00:30:00.000000Z"


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"value": ["x"], "partition": pa.array([4], pa.int32())}, "partition is 4, but topic orders has 4"),
        ({"value": ["x"], "id": pa.array([None], pa.string())}, "column id is null or empty"),
        ({"value": ["x", "y"], "id": ["1", ""]}, "column id is null or empty"),
        *(({"value": ["x", "y"], name: ["1", "a\0b"]}, f"column {name} holds a NUL in a row") for name in ("id", "source", "subject")),
    ],
)
def test_a_row_that_cannot_be_placed_or_named_is_refused(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        encoded(columns)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("key string", "column value is missing"),
        ("value double", "column value is double; cast it to binary or string"),
        ("value string, total int", "column total: not one that is written"),
        ("key string, value string, key string", "column key is there more than once; "),
    ],
)
def test_a_schema_that_does_not_fit_is_a_sentence(schema: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_schema(_schema(schema), OPTIONS)


def test_without_option_and_column_there_is_no_topic() -> None:
    with pytest.raises(ConfigError, match="no topic is given"):
        check_schema(_schema("value string"), WriteOptions("shop", {}))


def test_a_write_into_a_topic_of_the_relays_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"topic shop\.decisions: a topic of the relay's own is not a log"):
        check_schema(_schema("value string"), WriteOptions("shop", {}, topic="shop.decisions"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topci": "orders"}, "no such option"),
        ({"topic": "orders"}, r'option\("relay", NAME\) is missing'),
        ({"relay": "shop"}, "no broker is named"),
        ({"relay": "shop", "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.acks": "0"}, "the guarantee depends on it"),
        ({"relay": "shop", "kafka.bootstrap.servers": "other:9092"}, "not encrypted"),
        ({"relay": "shop", "kafka.bootstrap.servers": "127.0.0.1:1", "timeout": "soon"}, "seconds from 1 to 3600"),
    ],
)
def test_an_option_that_cannot_be_is_a_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_options(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.acks", "1"), ("Kafka.Acks", "0"), ("kafka.enable.idempotence", "false"), ("kafka.partitioner.ignore.keys", "true"),
        ("kafka.bootstrap.servers", "another:9092"),
        ("kafka.partitioner.class", "org.apache.kafka.clients.producer.RoundRobinPartitioner"),
    ],
)  # fmt: skip
def test_a_sink_that_would_lose_or_reorder_rows_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"sink {name} = {value}: "):
        check_sink({name: value})

    check_sink({"kafka.acks": "-1", "kafka.enable.idempotence": "TRUE", "kafka.linger.ms": "50", "kafka.partitioner.ignore.keys": "false"})


def test_a_batch_that_went_into_another_topic_is_not_taken_for_done() -> None:
    places = (LogPartition("orders", 0), LogPartition("orders", 1))
    done = UnitDecision(batch_unit("q", 3), "run", True, (Attempt(b"n" * 16, 0, places),))

    refuse_another_topic(done, "orders")
    with pytest.raises(ConfigError, match=r"batch 3 of q was captured into orders, and would be passed over for bills: .* query="):
        refuse_another_topic(done, "bills")
    refuse_another_topic(replace(done, attempts=(Attempt(b"n" * 16, 0, ()),)), "bills")


def test_a_setting_of_another_client_is_named_without_its_value() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="s3cret";'
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.jaas\.config") as refused:
        read_options({"relay": "shop", "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.sasl.jaas.config": jaas})

    assert "s3cret" not in str(refused.value)


def test_options_do_not_print_a_password() -> None:
    made = read_options({"relay": "shop", "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.sasl.username": "u",
                         "kafka.sasl.password": "canary", "kafka.security.protocol": "sasl_ssl"})  # fmt: skip

    assert "canary" not in repr(made)


def _schema(text: str) -> StructType:
    kinds = {"string": "string", "int": "integer", "double": "double"}
    fields = [one.split() for one in text.split(", ")]
    return StructType.fromJson(
        {"type": "struct", "fields": [{"name": n, "type": kinds[k], "nullable": True, "metadata": {}} for n, k in fields]}
    )


def test_a_batch_that_was_captured_with_another_checkpoint_is_refused_and_no_other() -> None:
    """Also what an earlier version has captured, and what no streaming query numbers, says nothing of a checkpoint."""
    ours, theirs, unknown = (f"{one}0c9bd-93c1-4c3e-9d4e-0b8e7c1d2f3a" for one in ("a1b", "c2d", "e3f"))
    mine = new_run(ours)

    for known in (new_run(ours), new_run(None), unknown):
        refuse_another_checkpoint(UnitDecision(batch_unit("q", 3), known, committed=True), mine)
        refuse_another_checkpoint(UnitDecision(batch_unit("q", 3), known, committed=True), new_run(None))
    with pytest.raises(ConfigError, match="batch 3 of q was captured by another query of this name"):
        refuse_another_checkpoint(UnitDecision(batch_unit("q", 3), new_run(theirs), committed=True), mine)
