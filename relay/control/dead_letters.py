"""The dead letters of all routes, read from ``<relay>.deadletter``: each once, the latest record of it.

All of the topic is read: behind a bound, letters would be hidden by as many later records that take others back.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from relay.config.model import RelayConfig
from relay.delivery.deadletter import PREFIX
from relay.delivery.table import LOST_PAYLOAD
from relay.kafka import settings
from relay.kafka.reading import PartitionReader
from relay.kafka.topics import Topics
from relay.message.envelope import REDRIVEN, SOURCE
from relay.message.errors import ConfigError
from relay.message.record import LogPartition, headers_if_any
from relay.run import clock
from relay.run.logging import text

_DEADLINE_S: Final = 30.0
_NUMBER: Final = re.compile("[0-9]{1,18}")
"""What fits an order's fields; a stranger's record may say anything."""
_FACTS: Final = (
    "route", "target", "stage", "code", "message", "topic", "partition", "offset", "attempts", "last_failed_at", "message_id",
    "replay_count",
)  # fmt: skip


def dead_letters(config: RelayConfig, *, route: str | None = None, code: str | None = None) -> list[dict[str, Any]]:
    """Return what is dead, by route and place in the log, without payloads; ConfigError if there is no such topic.

    What a redrive has delivered is dead no more.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    revived: set[tuple[str, str]] = set()
    for record in _records(config):
        row = _row(record)
        key = row["digest"], row["route"]
        if row["code"] == REDRIVEN:
            revived.add(key)
        elif route in (None, row["route"]) and _tells_more(row, found.get(key)):
            found[key] = row
    dead = (row for key, row in found.items() if key not in revived and code in (None, row["code"]))
    return sorted(dead, key=lambda row: (row["route"], row["topic"], int(row["partition"]), int(row["offset"])))


def dead_letter(config: RelayConfig, digest: str) -> list[dict[str, Any]]:
    """Return the records of one dead letter, one for each route, with the payload as base64.

    Of one that was redriven, the code of the latest says what came of it.
    """
    found: dict[str, dict[str, Any]] = {}
    for record in _records(config):
        row = _row(record)
        if row["digest"] == digest and _tells_more(row, found.get(row["route"])):
            value = record.value()
            found[row["route"]] = {**row, "value": None if value is None else base64.b64encode(value).decode("ascii")}
    return list(found.values())


def _records(config: RelayConfig) -> Iterator[Any]:
    with Topics(config.kafka, config.timing) as topics:
        facts = topics.describe([config.deadletter_topic], settings=False).get(config.deadletter_topic)
    if facts is None:
        raise ConfigError(f"topic {config.deadletter_topic} does not exist; run `relay migrate`")
    given = settings.consumer(config.kafka, config.timing, f"{config.relay.name}.deadletter.reader")
    with PartitionReader(given, committed=True, clock=clock.monotonic, deadline_s=_DEADLINE_S) as reader:
        places = [LogPartition(facts.name, number) for number in range(facts.partitions)]
        ranges = {place: reader.watermarks(place) for place in places}
        for batch in reader.read(ranges):
            yield from batch


def _tells_more(row: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    """The last redrive counts, and of repeats the last, unless it was written without the payload (at a recovery)."""
    if known is None:
        return True
    if row["replay_count"] != known["replay_count"]:
        return int(row["replay_count"]) > int(known["replay_count"])
    return bool(row["code"] != LOST_PAYLOAD.code)


def _row(record: Any) -> dict[str, Any]:
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in headers_if_any(record)}
    row = {name: text(headers.get(PREFIX + name, "")) for name in _FACTS}
    for name in ("partition", "offset", "replay_count"):
        row[name] = row[name] if _NUMBER.fullmatch(row[name]) else "0"
    return {"digest": text((record.key() or b"").decode("ascii", "replace")), **row, "source": text(headers.get(SOURCE, ""))}
