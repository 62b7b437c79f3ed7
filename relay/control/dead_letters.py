"""The dead letters of all routes, read from ``<relay>.deadletter``: each once, the latest record of it.

All of the topic is read: behind a bound, letters would be hidden by as many later records that take others back. What is
kept is bounded: letters past ``LETTERS_MAX`` are looked at when those before them are redriven.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from relay.config.model import RelayConfig
from relay.delivery.deadletter import PREFIX
from relay.delivery.table.verdicts import LOST_CAUSE, LOST_PAYLOAD
from relay.kafka import settings
from relay.kafka.reading import PartitionReader
from relay.kafka.topics import Topics
from relay.message.envelope import DEAD_CODE, DEAD_REPLAY, DEAD_ROUTE, REDRIVEN, SOURCE
from relay.message.errors import ConfigError
from relay.message.record import LogPartition, headers_if_any
from relay.run.logging import text
from relay.world import clock

LETTERS_MAX: Final = 200_000
"""About 250 MB."""
_DEADLINE_S: Final = 30.0
_NUMBER: Final = re.compile("[0-9]{1,18}")
"""What fits an order's fields; a stranger's record may say anything."""
_FACTS: Final = (
    "route", "target", "stage", "code", "message", "topic", "partition", "offset", "attempts", "message_id", "replay_count",
)  # fmt: skip


class DeadLetters(NamedTuple):
    """Dead letters by route and place in the log, without payloads; not ``complete``: there are more."""

    rows: list[dict[str, Any]]
    complete: bool


def dead_letters(config: RelayConfig, *, route: str | None = None, code: str | None = None) -> DeadLetters:
    """Return what is dead; ConfigError if there is no such topic. What a redrive has delivered is dead no more."""
    revived: dict[tuple[str, str], int] = {}
    for record in _records(config):
        if _header(record, DEAD_CODE) == REDRIVEN:
            revived[_key(record)] = max(letter_number(_header(record, DEAD_REPLAY)), revived.get(_key(record), 0))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    complete = True
    for record in _records(config):
        key = _key(record)
        if letter_number(_header(record, DEAD_REPLAY)) < revived.get(key, 0) or route not in (None, key[1]):
            continue
        if key not in found and len(found) >= LETTERS_MAX:
            complete = False
        elif (row := _row(record))["code"] != REDRIVEN and _row_tells_more(row, found.get(key)):
            found[key] = row
    dead = (row for row in found.values() if code in (None, row["code"]))
    rows = sorted(dead, key=lambda row: (row["route"], row["topic"], row["partition"], row["offset"]))
    return DeadLetters(rows, complete)


def dead_letter(config: RelayConfig, digest: str) -> list[dict[str, Any]]:
    """Return the records of one dead letter, one for each route, with the payload as base64.

    Of one that was redriven, the code of the latest says what came of it.
    """
    found: dict[str, dict[str, Any]] = {}
    for record in _records(config):
        row = _row(record)
        if row["digest"] == digest and _row_tells_more(row, found.get(row["route"])):
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


def letter_number(said: str) -> int:
    """Read a number of a letter; what is none counts as 0."""
    return int(said) if _NUMBER.fullmatch(said) else 0


def tells_more(replay: int, code: str, known_replay: int, known_code: str) -> bool:
    """The last redrive counts, and of its letters the last of those that know most.

    A recovery repeats letters without their cause, or the payload as well, and maybe into another partition: the letter
    of the worker that saw the message die may be read before or after.
    """
    if replay != known_replay:
        return replay > known_replay
    return _knows(code) >= _knows(known_code)


def _knows(code: str) -> int:
    return {LOST_PAYLOAD.code: 0, LOST_CAUSE.code: 1}.get(code, 2)


def _row_tells_more(row: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    return known is None or tells_more(row["replay_count"], row["code"], known["replay_count"], known["code"])


def _key(record: Any) -> tuple[str, str]:
    """Return digest and route."""
    return text((record.key() or b"").decode("ascii", "replace")), text(_header(record, DEAD_ROUTE))


def _header(record: Any, name: str) -> str:
    return (dict(headers_if_any(record)).get(name) or b"").decode("utf-8", "replace")


def _written_at(record: Any) -> str:
    has_time, ms = record.timestamp()
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") if has_time else ""


def _row(record: Any) -> dict[str, Any]:
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in headers_if_any(record)}
    row: dict[str, Any] = {name: text(headers.get(PREFIX + name, "")) for name in _FACTS}
    for name in ("partition", "offset", "attempts", "replay_count"):
        row[name] = letter_number(row[name])
    # Workers write no time of their own: the topic's is the brokers', whatever a worker's clock says.
    return {"digest": _key(record)[0], **row, "last_failed_at": _written_at(record), "source": text(headers.get(SOURCE, ""))}
