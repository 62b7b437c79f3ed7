"""Deaths in the job: the few that a message's own facts do not settle go to the driver, where ``relay verify``'s code judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from relay.audit import deaths
from relay.audit.evidence import Proven
from relay.audit.route_topics import ranges_of
from relay.config.model import RelayConfig, RouteConfig
from relay.jobs import facts, judging
from relay.jobs.monitors import Monitor, Monitors
from relay.jobs.records import Range, Sources
from relay.kafka.topics import TopicFacts
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Deaths:
    """The dead letters of one route, read through ``read``."""

    def __init__(
        self,
        config: RelayConfig,
        route: RouteConfig,
        known: Mapping[str, TopicFacts],
        sources: Sources,
        monitors: Monitors,
        read: Callable[[Mapping[LogPartition, Range]], DataFrame],
    ) -> None:
        self._config, self._route, self._sources = config, route, sources
        self._known = known
        self._monitors, self._read = monitors, read
        self._deaths: deaths.Deaths

    def sides(self) -> DataFrame:
        """Return the letters, and what takes them back, as sides of the meeting."""
        from pyspark.sql import functions as sql  # noqa: PLC0415 - see the package

        # Made here: partitions may have been added to the topics until now.
        self._deaths = deaths.Deaths(self._config, self._route, self._known, self._sources.topics, self._sources.scan)
        letters = self._known.get(self._config.deadletter_topic)
        self._deaths.ranges = ranges_of(self._sources.topics, letters) if letters is not None else {}
        if not any(first < end for first, end in self._deaths.ranges.values()):
            return judging.sided(self._sources.spark.createDataFrame([], "digest binary"), judging.PUT_ASIDE)
        found = facts.dead_letters(self._read(self._deaths.ranges), self._route.name)
        side = sql.when(sql.col("redriven"), judging.REDRIVEN).otherwise(judging.PUT_ASIDE)
        return judging.sided(found, side)

    def second(self, met: DataFrame) -> DataFrame | None:
        """Return what is to be said of effects beside a dead letter that stands; None where there are none."""
        wanted = judging.deaths_with_effect(met)
        first = wanted.collect()
        if not first:
            return None
        found = self._deaths.beside(
            {bytes(row.digest): row.death for row in first},
            lambda _deaths: self._monitors.proven_now(
                self._config.monitor_topic(self._route.name), wanted.select("digest"), first
            ),
        )
        rows = [(one, judging.SECOND) for one in found.faults] + [(one, judging.REDRIVING) for one in found.redriving]
        return self._sources.spark.createDataFrame(rows, "digest binary, beside string")

    def forgotten(self, met: DataFrame, entered: DataFrame | None, monitor: Monitor) -> DataFrame | None:
        """Return the recorded deaths whose letters retention may have taken; None where there are none. Letters were read."""
        self._deaths.note_what_is_left()
        if entered is None or not any(self._deaths.trimmed.lows.values()):
            return None
        rows = judging.deaths_without_letter(met, entered).collect()
        begins = self._monitors.begins(monitor, {(row.home, row.transaction) for row in rows if row.transaction})
        found = [
            (bytes(row.digest), True)
            for row in rows
            if self._deaths.trimmed.may_cover(
                Proven(
                    bytes(row.digest), DEAD, LogPartition(row.log_topic, row.log_partition), row.log_offset, -1, -1, row.replay,
                    row.at, begins.get((row.home, row.transaction)),
                )
            )
        ]  # fmt: skip
        return self._sources.spark.createDataFrame(found, "digest binary, forgotten boolean")
