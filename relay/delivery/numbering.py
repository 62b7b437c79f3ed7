"""Publisher ranges at delivery: what a batch closes, which messages the ranges refuse, and how ranges stay alive."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import structlog

from relay.delivery.batch import Batch, Counts
from relay.delivery.evidence_reading import MonitorView
from relay.delivery.ports import KafkaPorts
from relay.message.errors import MessageRejected, Stopped
from relay.message.identity import digest
from relay.message.numbers import number_of, numbers_of
from relay.message.record import LogMessage, LogPartition
from relay.message.schemas import OtherVersion, UnknownRecord
from relay.monitor.ranges import (
    Closing,
    Closings,
    RangeEntry,
    RangeKey,
    Ranges,
    Standing,
    decode_value,
    encode_key,
    encode_value,
    note,
    note_claim,
)
from relay.transfer.cursor import Claim, RangeRow

log = structlog.get_logger("relay.ranges")
HORIZON_S: Final = 7 * 86400.0
MARKS_PER_HORIZON: Final = 16
REWRITES_PER_HORIZON: Final = 4
REWRITTEN_AT_ONCE: Final = 500
ROOM_PERIOD_S: Final = 600.0
"""How often the log's low watermarks are asked for while the bound on incarnations is reached."""


def closings(batch: Batch) -> dict[int, Closings]:
    """Return, by partition number, what a batch closes: every number it hands on, and those of aborted captures."""
    if not batch.numbered:
        return {}
    found: dict[int, Closings] = {}
    for (topic, partition, source, incarnation), numbers in numbers_of(batch.messages).items():
        # Where the reader stands is above every message that it has handed on: sure, and no work per message.
        seen = batch.reached.get(LogPartition(topic, partition), 0) - 1
        found.setdefault(partition, {})[RangeKey(topic, source, incarnation)] = Closing(numbers, seen=seen)
    for (topic, partition), aborted in batch.aborted.items():
        for number, offset in aborted.numbers:
            note(found.setdefault(partition, {}), topic, number, offset)
        for run in aborted.claims:
            note_claim(found.setdefault(partition, {}), topic, run)
    return found


def judged(
    fresh: list[LogMessage], found: Mapping[int, Closings], ranges: Mapping[int, Ranges], counts: Counts
) -> list[LogMessage]:
    """Let the numbers speak on messages whose digest is unknown.

    A repeat from beyond the horizon is counted and left out. A conflict is neither delivered nor dropped: it gets a
    fault, which makes it a dead letter, or stops the route, for a person to decide.
    """
    suspects = {(partition, key) for partition, some in found.items() for key in ranges[partition].suspects(some)}
    if not suspects:
        return fresh
    kept: list[LogMessage] = []
    taken: set[tuple[int, RangeKey, int]] = set()
    for message in fresh:
        number = number_of(message)
        key = RangeKey(message.topic, number.source, number.incarnation) if number is not None else None
        if number is None or key is None or (message.partition, key) not in suspects:
            kept.append(message)
            continue
        place = (message.partition, key, number.sequence)
        standing = Standing.CONFLICT if place in taken else ranges[message.partition].standing(key, number.sequence)
        if standing is Standing.AGED:
            counts.duplicates += 1
            continue
        taken.add(place)
        if standing is Standing.OPEN:
            kept.append(message)
        else:
            counts.conflicts += 1
            kept.append(message._replace(fault=message.fault or _conflict(message, number.sequence)))
    return kept


def _conflict(message: LogMessage, sequence: int) -> MessageRejected:
    log.error("number conflict", at=repr(message), sequence=sequence)
    return MessageRejected(
        "apply",
        "number_conflict",
        f"number {sequence} of its incarnation is closed, and not by a message of this identity; find out who wrote it",
    )


class RangeUpkeep:
    """Keeps one worker's ranges honest about the horizon and within their bounds."""

    def __init__(self, ports: KafkaPorts, monitor: str, horizon_s: float) -> None:
        self._ports = ports
        self._monitor = monitor
        self._mark_s = horizon_s / MARKS_PER_HORIZON
        self._rewrite_s = horizon_s / REWRITES_PER_HORIZON
        self._mark_at: float | None = None
        self._room_at = float("-inf")

    def tend(
        self, now: float, views: Collection[MonitorView], topics: Collection[str]
    ) -> dict[int, list[RangeKey]]:
        """When due, mark how far the monitor reaches, and make room; return who was forgotten, by partition."""
        if self._mark_at is None:
            self._mark_at = now + self._mark_s
        numbered = [view for view in views if len(view.index.ranges)]
        marking = now >= self._mark_at and bool(numbered)
        full = [view for view in numbered if view.index.ranges.is_full] if now >= self._room_at else []
        if not marking and not full:
            return {}
        forgotten: dict[int, list[RangeKey]] = {}
        with self._ports.reader(committed=False) as reader:
            for view in numbered if marking else ():
                view.index.ranges.mark(reader.watermarks(LogPartition(self._monitor, view.partition))[1], exact=False)
            for view in full:
                low = {topic: reader.watermarks(LogPartition(topic, view.partition))[0] for topic in topics}
                forgotten[view.partition] = view.index.ranges.forget(low)
                if view.index.ranges.is_full:
                    log.warning(
                        "incarnations not followed", partition=view.partition, bound=len(view.index.ranges),
                        refused=view.index.ranges.refused, remedy="raise inflight.incarnations of the route",
                    )  # fmt: skip
        if marking:
            self._mark_at = now + self._mark_s
        if full:
            self._room_at = now + ROOM_PERIOD_S
        return forgotten

    def due(self, now: float, views: Collection[MonitorView]) -> dict[int, dict[RangeKey, None]]:
        """Return which ranges must be written again before they age out of the monitor, a bounded number at once."""
        found: dict[int, dict[RangeKey, None]] = {}
        for view in views:
            if len(view.index.ranges):
                due = view.index.ranges.due(now - self._rewrite_s, REWRITTEN_AT_ONCE)
                if due:
                    found[view.partition] = due
        return found


def written(
    ranges: Mapping[int, Ranges],
    found: Mapping[int, Closings],
    due: Mapping[int, Mapping[RangeKey, None]],
    *,
    worker: str,
    instance: bytes,
    n: int,
) -> list[tuple[int, RangeEntry]]:
    """Return the ranges that a transaction writes: of what it closes, and of what is due; each once."""
    entries: list[tuple[int, RangeEntry]] = []
    for partition in {*found, *due}:
        keys: dict[RangeKey, Closing | None] = {**due.get(partition, {}), **found.get(partition, {})}
        made = ranges[partition].entries(keys, worker=worker, instance=instance, n=n)
        entries += [(partition, entry) for entry in made]
    return entries


def accept(
    ranges: Mapping[int, Ranges], found: Mapping[int, Closings], entries: Sequence[tuple[int, RangeEntry]], now: float
) -> None:
    """The transaction committed: its numbers are closed, and its ranges written."""
    for partition, some in found.items():
        ranges[partition].close(some)
    for partition, entry in entries:
        ranges[partition].wrote([entry.key], now)


def kept_rows(
    ranges: Mapping[int, Ranges],
    found: Mapping[int, Closings],
    forgotten: Mapping[int, Sequence[RangeKey]],
    due: Mapping[int, Mapping[RangeKey, None]],
    now: float,
    *,
    worker: str,
    topics: Collection[str],
) -> list[RangeRow]:
    """Close what a batch closes, and return the rows that its transaction writes, in the order of their keys.

    Rows do not age; those that are ``due`` are written for their marks, so that a restart knows what has aged.
    """
    rows: list[RangeRow] = []
    for partition, keys in forgotten.items():
        gone = [key for key in keys if key not in found.get(partition, {}) and key.topic in topics]
        rows += [RangeRow(LogPartition(key.topic, partition), publisher(key), None) for key in gone]
    for partition in {*found, *due}:
        some = found.get(partition, {})
        ranges[partition].close(some)
        wanted: dict[RangeKey, Closing | None] = dict.fromkeys((*due.get(partition, ()), *some))
        made = list(ranges[partition].entries(wanted, worker=worker, instance=bytes(16), n=0))
        ranges[partition].wrote([entry.key for entry in made], now)
        rows += [
            RangeRow(LogPartition(entry.topic, partition), publisher(entry.key), encode_value(entry))
            for entry in made
        ]
    return sorted(rows, key=lambda row: (row.partition, row.publisher))


def taken_rows(ranges: Mapping[int, Ranges], claims: Mapping[LogPartition, Claim]) -> None:
    """Take the ranges that a claim has read. Raises Stopped if a row is broken, or what another version wrote.

    A note of a kind that this version does not know is left, under a topic that there is not (``note_rows``).
    """
    for place, claim in claims.items():
        for row in claim.ranges:
            try:
                entry = decode_value(row.state or b"")
                if entry.topic != place.topic:
                    raise OtherVersion(f"a note of {entry.topic!r}")
            except OtherVersion as error:
                raise Stopped(
                    f"relay_range has a row of {place.topic}[{place.partition}] that another version of the relay wrote, "
                    f"and this one cannot read ({error}): run that version, or a newer one"
                ) from None
            except UnknownRecord as error:
                raise Stopped(
                    f"relay_range has a row of {place.topic}[{place.partition}] that cannot be read ({error}); restore "
                    "it, or delete it: repeats of its publisher from beyond the horizon are then not recognised"
                ) from None
            ranges[place.partition].restore(entry)


def publisher(key: RangeKey) -> bytes:
    """Return the 16 bytes under which a table keeps a range."""
    return digest(b"r", encode_key(key))
