"""Monitors of routes as the audit reads them: begins, seals and keys at once, pages only for those who need them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from relay.audit.evidence import UNKNOWN_AGE, Evidence, Proven
from relay.audit.route_topics import ranges_of
from relay.jobs import facts, judging
from relay.jobs.facts import Ends
from relay.jobs.records import Range
from relay.kafka.topics import Topics
from relay.message.record import LogPartition, of_other_version
from relay.message.schemas import FRAME_BYTES, OtherVersion, UnknownRecord
from relay.monitor import entries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL: Final = 100_000
"""So many digests (about 5 MB) go to every task, which then yields those only; more meet in a shuffle."""


@dataclass
class Monitor:
    """What a monitor's small records say; its pages are read only for those who need them."""

    ranges: dict[LogPartition, Range] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    ends: Ends = field(default_factory=Ends)


class Monitors:
    """Reads monitor topics through ``read``; what cannot be read is added to the notes."""

    def __init__(
        self, topics: Topics, read: Callable[[Mapping[LogPartition, Range]], DataFrame], notes: list[str]
    ) -> None:
        self._topics, self._read, self._notes = topics, read, notes

    def small(self, name: str) -> Monitor:
        """Read what a monitor's begins, seals and keys say: the route's own before the destination."""
        known = self._topics.describe([name], settings=False)
        if name not in known:
            self._note(f"the monitor {name} does not exist: run `relay migrate`")
            return Monitor()
        found = Monitor(ranges_of(self._topics, known[name]))
        records = self._read(found.ranges)
        # What another version wrote is looked for by its frame, so that pages stay where they are.
        readable = ", ".join(f"X'{frame.hex()}'" for frame in sorted(entries.frames()))
        is_small = "substring(key, 1, 1) in (X'62', X'73', X'74')"
        is_other = f"substring(value, 1, 2) = X'c301' and substring(value, 1, {FRAME_BYTES}) not in ({readable})"
        small = records.where(f"{is_small} or ({is_other})").selectExpr(
            "partition", "offset", "key", f"if({is_small}, value, substring(value, 1, {FRAME_BYTES})) as value"
        )
        broken = 0
        for row in small.orderBy("partition", "offset").collect():
            try:
                entry = entries.decode(bytes(row.key), bytes(row.value) if row.value is not None else None)
            except OtherVersion as error:
                raise of_other_version(name, row.partition, row.offset) from error
            except UnknownRecord:
                broken += 1
                continue
            if entry is not None:
                found.evidence.take(row.partition, entry)
                found.ends.take(entry)
        if broken:
            self._note(f"{broken} records of {name} cannot be read")
        return found

    def _note(self, words: str) -> None:
        if words not in self._notes:
            self._notes.append(words)

    def instances(self, monitor: Monitor) -> set[bytes]:
        """Return the producer instances that a monitor knows, by its small records and by the keys of its pages."""
        if not monitor.ranges:
            return monitor.evidence.instances
        pages = self._read(monitor.ranges).where("substring(key, 1, 1) = X'65'")
        named = pages.selectExpr("substring(key, 2, 16) as instance").distinct().collect()
        return monitor.evidence.instances | {bytes(row.instance) for row in named}

    def deciding(self, monitor: Monitor, wanted: DataFrame, first: list[Any]) -> DataFrame:
        """Return a monitor's deciding entries of the digests that are wanted, the ``first`` of which are known here."""
        pages, partitions = self._read(monitor.ranges), list(monitor.ranges)
        if len(first) <= SMALL:
            asked = frozenset(bytes(row.digest) for row in first)
            return judging.deciding_entries(facts.page_rows(pages, partitions, monitor.ends, asked))
        rows = facts.page_rows(pages, partitions, monitor.ends).join(wanted, "digest", "left_semi")
        return judging.deciding_entries(rows)

    def proven_now(self, name: str, wanted: DataFrame, first: list[Any]) -> Iterator[Proven]:
        """Yield what a monitor proves now of the digests that are wanted; which transaction did it is not told."""
        monitor = self.small(name)
        if monitor.ranges:
            for digest, entry in self.deciding(monitor, wanted, first).collect():
                place = LogPartition(entry.log_topic, entry.log_partition)
                yield Proven(bytes(digest), entry.outcome, place, entry.log_offset, -1, -1, entry.replay)

    def begins(self, monitor: Monitor, wanted: Collection[tuple[int, str]]) -> dict[tuple[int, str], entries.Begin]:
        """Return the begins of these transactions, by monitor partition and `page_rows`' name of them; compaction keeps a few."""
        found: dict[tuple[int, str], entries.Begin] = {}
        if not wanted:
            return found
        for row in self._read(monitor.ranges).where("substring(key, 1, 1) = X'62'").select("partition", "key", "value").collect():
            try:
                begin = entries.decode(bytes(row.key), bytes(row.value) if row.value is not None else None)
            except UnknownRecord:
                continue  # counted with the small records
            if isinstance(begin, entries.Begin):
                name = (row.partition, f"{begin.instance.hex()}/{begin.n}")
                found |= {name: begin} if name in wanted else {}
        return found

    def recent(self, monitor: Monitor, margin_ms: int) -> DataFrame:
        """Return (instance in hex, first): each instance's first transaction that is younger than all that the monitor has lost."""
        from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

        records = self._read(monitor.ranges)
        trimmed = [place.partition for place, (low, _high) in monitor.ranges.items() if low]
        at = sql.min_by(facts.by_broker(), "offset").alias("at")
        oldest = {row.partition: row["at"] for row in records.groupBy("partition").agg(at).collect()}
        ages = [oldest.get(number, -1) for number in trimmed]
        since = max(ages) if min(ages, default=0) >= 0 else UNKNOWN_AGE
        young = facts.page_marks(records).where(sql.col("at") >= since + margin_ms)
        return young.groupBy("instance").agg(sql.min("n").alias("first"))

    def entered(self, monitor: Monitor) -> set[LogPartition]:
        """Return the log partitions of which the monitor's pages tell anything that counts."""
        if not monitor.ranges:
            return set()
        rows = facts.page_rows(self._read(monitor.ranges), list(monitor.ranges), monitor.ends)
        found = rows.select("log_topic", "log_partition").distinct().collect()
        return {LogPartition(row.log_topic, row.log_partition) for row in found}
