"""Kafka records as Spark frames, between offsets that were fixed before: reading twice gives the same rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.jobs.session import raised
from relay.kafka.scan import Scan
from relay.kafka.settings import MACHINES_OWN, mechanism
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError, Unreachable
from relay.message.record import TOPIC_REMEDY, LogPartition, is_topic_name
from relay.world import clock

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Range = tuple[int, int]
"""First offset, and the offset after the last."""

PLACE_SHIFT: Final = 44
"""A place in a log is one number: the partition's index above 44 bits of offset."""
OFFSETS: Final = (1 << PLACE_SHIFT) - 1
STABLE_WAIT_S: Final = 40.0
"""Longer than the default transaction timeout and the broker's pause before it ends one, together."""
_ASK_MS: Final = "15000"
_OLDER_KEY: Final = re.compile("-----BEGIN (?!ENCRYPTED)[A-Z]+ PRIVATE KEY-----")
_KEY_REMEDY: Final = "write it by `openssl pkcs8 -topk8 -nocrypt`, or encrypted with `-v1 PBE-SHA1-3DES` in place of `-nocrypt`"
_SAME: Final = ("bootstrap.servers", "client.dns.lookup", "client.rack", "metadata.max.age.ms")


def java_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Java client that mean what the relay's ``[kafka]`` section says.

    ConfigError for one that changes whether the cluster is reached and that has no counterpart here.
    """
    found = {name: kafka[name] for name in _SAME if name in kafka}
    protocol = kafka.get("security.protocol", "plaintext").upper()
    if protocol != "PLAINTEXT":
        found["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        found |= _sasl(kafka)
    if (authorities := kafka.get("ssl.ca.location", MACHINES_OWN)) != MACHINES_OWN:
        if Path(authorities).is_dir():
            raise ConfigError(f"kafka.ssl.ca.location = {authorities} is a folder, which is not taken over to Spark; name one file of certificates.")
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authorities}
    if "ssl.ca.pem" in kafka:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": kafka["ssl.ca.pem"]}
    chain, key = (_pem(kafka, f"ssl.{one}") for one in ("certificate", "key"))
    if chain is not None and key is not None:
        if _OLDER_KEY.search(key):
            given = next(one for one in ("pem", "location") if f"ssl.key.{one}" in kafka)
            raise ConfigError(f"kafka.ssl.key.{given} has a key in a form that Spark's client does not read; {_KEY_REMEDY}.")
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": chain,
            "ssl.keystore.key": key,
        }
        if "ssl.key.password" in kafka:
            found["ssl.key.password"] = kafka["ssl.key.password"]
    elif "ssl.keystore.location" in kafka:
        raise ConfigError(
            "kafka.ssl.keystore.location is not taken over to Spark; use ssl.certificate.location and ssl.key.location."
        )
    return found


def _pem(kafka: Mapping[str, str], name: str) -> str | None:
    """Return a certificate or a key, which is given as such or in a file; None if it is not."""
    if f"{name}.pem" in kafka:
        return kafka[f"{name}.pem"]
    where = kafka.get(f"{name}.location")
    return None if where is None else Path(where).read_text("utf-8")


def _sasl(kafka: Mapping[str, str]) -> dict[str, str]:
    chosen = mechanism(kafka) or "PLAIN"
    if chosen == "OAUTHBEARER":
        raise ConfigError("kafka.token_file is not taken over to Spark; use another mechanism, or client certificates, for its jobs.")
    module = "plain.Plain" if chosen == "PLAIN" else "scram.Scram"
    user, password = (
        kafka.get(f"sasl.{one}", "").replace("\\", "\\\\").replace('"', '\\"')
        for one in ("username", "password")
    )
    return {
        "sasl.mechanism": chosen,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required "
        f'username="{user}" password="{password}";',
    }


class Broker:
    """The cluster as the JVM's own client sees it: topics, their ends, and whether those can be read already."""

    def __init__(self, spark: SparkSession, java: Mapping[str, str]) -> None:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark

        jvm: Any = spark._jvm  # noqa: SLF001 - the only way to the JVM's own client
        self._jvm = jvm
        settings = jvm.java.util.Properties()
        for key, value in {**java, "default.api.timeout.ms": _ASK_MS, "request.timeout.ms": _ASK_MS}.items():
            settings.put(key, value)
        self._where = java["bootstrap.servers"]
        self._failure = Py4JJavaError
        try:
            self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        except Py4JJavaError as error:
            if any("InvalidConfiguration" in one.getClass().getSimpleName() for one in raised(error)):
                raise ConfigError(
                    f"[kafka]: Spark's client does not take the certificates or the key ({_cause(error)}); correct them or ssl.key.password. "
                    f"A key that is encrypted otherwise it does not read: {_KEY_REMEDY}."
                ) from error
            raise Unreachable(f"the brokers {self._where} cannot be used: {_cause(error)}.") from error

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has. ConfigError if there is no such topic, Unreachable without an answer."""
        if not is_topic_name(topic):
            raise ConfigError(f"topic {topic!r}: not a topic's name; {TOPIC_REMEDY}")
        names = self._jvm.java.util.Collections.singletonList(topic)
        try:
            found = self._admin.describeTopics(names).allTopicNames().get().get(topic)
        except self._failure as error:
            if "UnknownTopicOrPartition" in _cause(error):
                raise ConfigError(
                    f"topic {topic} does not exist on {self._where}: create it first (`relay dev topic` does on this machine)."
                ) from error
            raise Unreachable(f"the brokers {self._where} do not answer: {_cause(error)}.") from error
        return int(found.partitions().size())

    def ends(self, partitions: Iterable[LogPartition], *, committed: bool = False) -> dict[LogPartition, int]:
        """Return the high watermarks; with ``committed`` the ends below which no Kafka transaction is open."""
        return self._offsets(partitions, "latest", committed=committed)

    def begins(self, partitions: Iterable[LogPartition]) -> dict[LogPartition, int]:
        """Return the low watermarks."""
        return self._offsets(partitions, "earliest", committed=False)

    def wait_until_stable(self, ranges: Mapping[LogPartition, Range]) -> None:
        """Return when nothing below the ranges' ends is undecided; Unreachable names what stays open too long."""
        limit = clock.monotonic() + STABLE_WAIT_S
        while True:
            stable = self.ends(ranges, committed=True)
            waiting = [p for p, (first, end) in ranges.items() if first < end and stable[p] < end]
            if not waiting:
                return
            if clock.monotonic() > limit:
                where = ", ".join(f"{p.topic}[{p.partition}] at offset {stable[p]}" for p in waiting)
                raise Unreachable(
                    f"a Kafka transaction is still open after {STABLE_WAIT_S:g} s: {where}; wait for its timeout, or end it "
                    "(kafka-transactions.sh), and try again."
                )
            clock.sleep(0.2)

    def _offsets(
        self, partitions: Iterable[LogPartition], which: str, *, committed: bool
    ) -> dict[LogPartition, int]:
        jvm = self._jvm
        spec = getattr(jvm.org.apache.kafka.clients.admin.OffsetSpec, which)()
        level = jvm.org.apache.kafka.common.IsolationLevel
        options = jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(
            level.READ_COMMITTED if committed else level.READ_UNCOMMITTED
        )
        asked = jvm.java.util.HashMap()
        for one in partitions:
            asked.put(jvm.org.apache.kafka.common.TopicPartition(one.topic, one.partition), spec)
        try:
            found = self._admin.listOffsets(asked, options).all().get()
        except self._failure as error:
            raise Unreachable(f"the brokers {self._where} do not tell offsets: {_cause(error)}.") from error
        return {
            LogPartition(str(e.getKey().topic()), int(e.getKey().partition())): int(e.getValue().offset())
            for e in found.entrySet()
        }


@dataclass(frozen=True)
class Sources:
    """Where an audit reads from."""

    spark: SparkSession
    java: Mapping[str, str]
    broker: Broker
    topics: Topics
    scan: Scan


def read(
    spark: SparkSession, java: Mapping[str, str], ranges: Mapping[LogPartition, Range], *, tasks: int = 0
) -> DataFrame:
    """Return the committed records of the ranges with their headers; at least ``tasks`` tasks read them."""
    topics: dict[str, list[int]] = {}
    for one in ranges:
        topics.setdefault(one.topic, []).append(one.partition)
    edges = [
        {
            topic: {str(p): ranges[LogPartition(topic, p)][edge] for p in numbers}
            for topic, numbers in topics.items()
        }
        for edge in (0, 1)
    ]
    options = {
        **{f"kafka.{name}": value for name, value in java.items()},
        "assign": json.dumps(topics),
        "startingOffsets": json.dumps(edges[0]),
        "endingOffsets": json.dumps(edges[1]),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }
    if tasks > len(ranges):
        options["minPartitions"] = str(tasks)
    return spark.read.format("kafka").options(**options).load()


def place(partitions: Iterable[LogPartition]) -> Column:
    """Return the record's place as one number that grows with partition and offset."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

    number = sql.lit(-1)
    first: dict[str, int] = {}
    for index, one in enumerate(partitions):
        first.setdefault(one.topic, index - one.partition)
    for topic, base in first.items():
        number = sql.when(sql.col("topic") == topic, sql.col("partition") + base).otherwise(number)
    return sql.shiftleft(number.cast("long"), PLACE_SHIFT) + sql.col("offset")


def located(number: int, partitions: list[LogPartition]) -> tuple[LogPartition, int]:
    """Return partition and offset of a place."""
    return partitions[number >> PLACE_SHIFT], number & OFFSETS


def _cause(error: Any) -> str:
    *_, inner = raised(error)
    return f"{inner.getClass().getSimpleName()}: {inner.getMessage()}"
