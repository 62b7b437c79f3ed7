"""Captured messages with their publisher's numbers, and batches of them."""

from __future__ import annotations

from typing import Any

import orjson

from relay.delivery.batch import Batch
from relay.delivery.evidence_reading import MonitorView
from relay.log.holds import Aborted
from relay.message.envelope import CAPTURE, ID, INCARNATION, RESOURCE, SEQUENCE, SOURCE
from relay.message.identity import cloudevents, content_digest
from relay.message.record import LogMessage, LogPartition
from relay.monitor.evidence import Evidence
from relay.monitor.index import DedupIndex
from relay.monitor.ranges import RangeKey
from tests.memory_index import memory_index
from tests.unit.memory_kafka import MemoryKafka

LOG, MONITOR = LogPartition("log", 0), LogPartition("monitor", 0)
OTHER = LogPartition("log", 1)
DAY = 86400.0
KEY = RangeKey("log", b"/shop", b"i1")


def captured(
    sequence: int, *, offset: int | None = None, name: str = "", incarnation: bytes = b"i1", partition: int = 0,
    capture: bytes | None = b"c" * 16,
) -> LogMessage:  # fmt: skip
    identifier = (name or f"{incarnation.decode()}-{partition}-{sequence}").encode()
    headers = [
        ("ce_specversion", b"1.0"), (SOURCE, b"/shop"), (RESOURCE, b"shop/u"), (INCARNATION, incarnation),
        (CAPTURE, b"63" * 16), (ID, identifier), (SEQUENCE, b"%d" % sequence),
    ]  # fmt: skip
    digest = cloudevents(dict(headers), b"log", b"")
    assert digest is not None
    value = orjson.dumps({"id": identifier.decode()})
    at = sequence - 1 if offset is None else offset
    return LogMessage("log", partition, at, None, value, headers, digest, content_digest(None, value), b"/shop", capture, 0)


def view(number: int = 0, index: DedupIndex | None = None) -> MonitorView:
    index = memory_index(number) if index is None else index
    fold = Evidence(index.add_page, index.void, index.ranges.restore, index.ranges.restore_closing)
    return MonitorView(number, index, fold, 0, 0)


def batch(
    messages: list[LogMessage], upto: int, first: int = 0, numbered: bool = True, aborted: Aborted | None = None,
    place: LogPartition = LOG,
) -> Batch:  # fmt: skip
    ended = {place: aborted} if aborted is not None else {}
    return Batch(
        1, messages, {place: first}, {place: upto}, {place: upto}, b"member", numbered=numbered, aborted=ended
    )


def start(stored: Any, *_: Any) -> dict[LogPartition, int]:
    return {p: at or 0 for p, at in stored.items()}


def out(kafka: MemoryKafka, topic: str = "out") -> list[str]:
    return [orjson.loads(one.value() or b"")["id"] for one in kafka.visible(LogPartition(topic, 0))]
