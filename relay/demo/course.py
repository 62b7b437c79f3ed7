"""The course: sources, relay and accidents side by side, until everything captured is relayed and all are back."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from random import Random
from typing import Final

import psycopg

from relay.control.status import PartitionView, RouteView
from relay.control.status_reading import StatusReader
from relay.demo.crew import Crew
from relay.demo.part import Part
from relay.demo.service import BookingService
from relay.demo.show import Show, Sight
from relay.demo.stage import FLIGHTS, Stage
from relay.local import spark
from relay.message.errors import CheckFailed, Unreachable
from relay.world import clock

ALL_FLIGHTS: Final = 336_776
STALL_S: Final = 600.0
"""Far longer than anything takes that goes on, also the first step of Spark on a slow and busy machine that was never run before."""
WHOLE_S: Final = 7200.0
FEWER: Final = "If this machine is only slow, or short of memory, it manages a part of them: relay demo --messages 20000"
PERIOD_S: Final = 0.25
PERIOD_MAX_S: Final = 5.0
LOOKS_IN_A_PAUSE: Final = 4
"""A look costs the broker and the database what the demonstration itself is short of, so most of the time none is taken."""
END_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demonstration itself knows of its sources and accidents."""

    flights: int
    rolled_back: frozenset[str]
    publisher_crashes: int
    kills: int


def bookings_for(flights: int) -> int:
    """Return how many seats are to be booked beside so many flights."""
    return max(240, min(8000, flights // 40))


class Course:
    """One run, from the start of the sources to the drained relay."""

    def __init__(self, stage: Stage, flights: int | None, seed: int, show: Show) -> None:
        self._stage = stage
        self._limit = flights
        self._expected = min(flights or ALL_FLIGHTS, ALL_FLIGHTS)
        self._target = bookings_for(self._expected)
        self._show = show
        chance = Random(seed)  # noqa: S311 - a repeatable demonstration
        self._kill_at = {route: chance.uniform(0.2, 0.5) for route in stage.config.routes}
        self._report = ""
        self._spark_steps = 0
        self._flights = 0
        self._rows: int | None = None
        self._relayed = dict.fromkeys(stage.config.routes, 0)
        self._views: list[RouteView] = []
        self._service = BookingService(stage, self._target, seed, show)
        self._crew: Crew | None = None
        self._spark: Part | None = None

    def run(self) -> Outcome:
        """Start everything at the same time and see it through. Raises CheckFailed, Unreachable."""
        try:
            self._service.tend(0.0, may_finish=False)
            self._spark = self._start_spark()
            self._crew = crew = Crew(self._stage, self._show)
            with StatusReader(self._stage.config) as reader, psycopg.connect(self._stage.url, autocommit=True) as database:
                self._see_through(crew, self._spark, reader, database)
            self._show.say("everything is relayed; the workers drain")
            crew.stop()
        finally:
            self._end()
        assert self._rows is not None, "Spark is done"
        return Outcome(
            self._rows, frozenset(self._service.rolled_back), self._service.crashes, len(crew.kills)
        )

    def _see_through(
        self, crew: Crew, job: Part, reader: StatusReader, database: psycopg.Connection[tuple[int]]
    ) -> None:
        began = moved = clock.monotonic()
        before: object = None
        while True:
            crew.tend()
            self._tend_spark(job)
            killed = all(crew.killed(route) for route in self._relayed)
            self._service.tend(self._flights / self._expected, may_finish=killed)
            # Whether the sources have ended is asked before the ends of the log are read.
            sources_ended = self._rows is not None and self._service.is_done
            looked = clock.monotonic()
            sight = self._look(reader, database)
            look_s = clock.monotonic() - looked
            if sight is not None:
                self._show.sight(sight)
                self._kill_where_due(crew)
                if sources_ended and not crew.absent() and all(map(_is_caught_up, self._views)):
                    return
            now = clock.monotonic()
            # Before its first flight Spark computes for longer than anything else waits; its lines tell how far it is.
            signs = (sight, crew.absent(), self._service.crashes, sources_ended, self._spark_steps)
            if sight is not None and signs != before:
                before, moved = signs, now
            if now - moved > STALL_S or now - began > WHOLE_S:
                still = f"nothing moved for {now - moved:.0f} s" if now - moved > STALL_S else f"it takes longer than {WHOLE_S:.0f} s"
                raise self._stuck(crew, job, still)
            clock.sleep(min(max(PERIOD_S, LOOKS_IN_A_PAUSE * look_s), PERIOD_MAX_S))

    def _look(self, reader: StatusReader, database: psycopg.Connection[tuple[int]]) -> Sight | None:
        """Read how far everything is; None if the broker is too busy to answer."""
        with contextlib.suppress(Unreachable):  # Retry: the next look, or the stall's deadline, tells.
            self._views = reader.read()
            row = database.execute("select count(*) from booking").fetchone()
            assert row is not None, "a count is one row"
            self._flights = flights = sum(p.end for p in self._views[0].partitions if p.topic == FLIGHTS)
            for view in self._views:
                # The lag counts outcome markers, too; with none left both are the same.
                captured = flights + row[0]
                self._relayed[view.name] = max(self._relayed[view.name], captured - sum(map(_lag, view.partitions)))
            return Sight(flights, self._expected, row[0], self._target, dict(self._relayed))
        return None

    def _kill_where_due(self, crew: Crew) -> None:
        whole = self._expected + self._target
        for view in self._views:
            if not crew.killed(view.name) and self._relayed[view.name] >= self._kill_at[view.name] * whole:
                crew.kill(view)

    def _start_spark(self) -> Part:
        config = self._stage.config
        words = ["--bootstrap", config.kafka["bootstrap.servers"], "--topic", FLIGHTS, "--json"]
        words += ["--limit", str(self._limit)] if self._limit is not None else []
        job = spark.submission("flights", words, self._show.say)
        env = {**job.environment, **self._stage.env}
        return Part("the Spark job", job.command, self._stage.log("spark"), env)

    def _tend_spark(self, job: Part) -> None:
        if self._rows is not None:
            return
        code = job.ended()
        for line in job.heard():
            self._spark_steps += line.startswith("flights: ")
            self._report = line if line.startswith("{") else self._report
        if code is None:
            return
        if code != 0 or not self._report:
            raise job.complaint(f"The Spark job ended with exit code {code} before all flights were in the log.")
        self._rows = int(json.loads(self._report)["rows"])
        if self._rows != self._expected:
            raise CheckFailed(f"Spark wrote {self._rows} flights, {self._expected} were asked for.")

    def _stuck(self, crew: Crew, job: Part, still: str) -> CheckFailed:
        """Say what is waited for, with the log of the part that should bring it."""
        if self._rows is None:
            found = f"{self._flights:,} of {self._expected:,} flights are in the log"
            return job.complaint(f"The flights are not all in the log; {still} ({found}).\n{FEWER}")
        if not self._service.is_done and self._service.part is not None:
            return self._service.part.complaint(f"The bookings do not end; {still}.\n{FEWER}")
        behind = [f"{view.name} has {sum(map(_lag, view.partitions))} records to go" for view in self._views]
        absent = [f"worker {number} of {route} is not back" for route, number in crew.absent()]
        waits = [f"{view.name} waits for its kill" for view in self._views if not crew.killed(view.name)]
        return crew.part.complaint(f"Not everything is relayed; {still}: {'; '.join([*behind, *absent, *waits])}.\n{FEWER}")

    def _end(self) -> None:
        """End every part that still runs; after a proper end there is none."""
        self._service.end(END_GRACE_S)
        for part in (self._spark, self._crew.part if self._crew else None):
            if part is not None and part.ended() is None:
                part.end(END_GRACE_S)


def _is_caught_up(view: RouteView) -> bool:
    return not any(_lag(partition) or partition.held or partition.in_doubt for partition in view.partitions)


def _lag(partition: PartitionView) -> int:
    return partition.end if partition.lag is None else partition.lag
