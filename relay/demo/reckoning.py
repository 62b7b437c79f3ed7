"""The reckoning: the auditor's word, and beside it what the demonstration itself knows of its flights and bookings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from relay.audit.at_once import verify_at_once
from relay.audit.seen import Watch
from relay.audit.verify import RouteReport
from relay.demo import bookings
from relay.demo.course import Outcome
from relay.demo.stage import DEPARTURES, PARTITIONS, Stage
from relay.kafka.scan import Scan
from relay.kafka.topics import Topics
from relay.local.two_routes import LEDGER, TO_TABLE, TO_TOPIC
from relay.message.envelope import ID, TYPE
from relay.message.record import LogPartition
from relay.world import schedule

EXACTLY_ONCE: Final = "exactly once"
FLIGHT_TYPE: Final = "flight.departed"
EXAMPLES_MAX: Final = 3
FAILED: Final = ("dead_letters", "unseen")


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a destination shows: how many flights, and each booking's id with how often it is there."""

    flights: int
    bookings: Mapping[str, int]


@dataclass(frozen=True)
class Result:
    """What was proven, and what was not."""

    outcome: Outcome
    booked: int
    reports: list[RouteReport]
    complaints: list[str]
    phases: dict[str, float]

    @property
    def ok(self) -> bool:
        """Is everything as promised, and did the accidents happen that it was promised for?"""
        return not self.complaints

    @property
    def seconds(self) -> float:
        """The whole run."""
        return sum(self.phases.values())

    @property
    def verdict(self) -> str:
        """What programs compare."""
        return EXACTLY_ONCE if self.ok else "; ".join(self.complaints)

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "routes": {report.route: report.document() for report in self.reports},
            "flights": self.outcome.flights,
            "bookings": self.booked,
            "rolled_back": len(self.outcome.rolled_back),
            "publisher_crashes": self.outcome.publisher_crashes,
            "kills": self.outcome.kills,
            "seconds": round(self.seconds, 1),
            "phases": {name: round(seconds, 1) for name, seconds in self.phases.items()},
            "ok": self.ok,
            "verdict": self.verdict,
        }


def reckon(stage: Stage, outcome: Outcome, watch: Watch, phases: dict[str, float]) -> Result:
    """Audit both routes, and beside that compare the destinations with the bookings in the database."""
    with schedule.pool("reckoning", 1) as beside:
        reading = beside.submit(_topic, stage)
        reports = verify_at_once(stage.config, (), processes=len(stage.config.routes), watch=watch)
        topic = reading.result()
    complaints = [report.sentence for report in reports if not report.ok]
    for report in reports:
        counts = ((name, getattr(report.findings, name)) for name in FAILED)
        complaints += [f"{report.route}: {count} {name.replace('_', ' ')}" for name, count in counts if count]
    with psycopg.connect(stage.url) as connection:
        booked = {row[0] for row in connection.execute("select id from booking")}
        table = _table(connection)
    for route, arrived in ((TO_TABLE, table), (TO_TOPIC, topic)):
        complaints += compare(route, arrived, outcome, booked)
    if outcome.kills < len(reports):
        complaints.append(f"only {outcome.kills} workers were killed on the way")
    return Result(outcome, len(booked), reports, list(dict.fromkeys(complaints)), phases)


def compare(route: str, arrived: Arrived, outcome: Outcome, booked: set[str]) -> list[str]:
    """Return what differs between a destination and what the demonstration wrote. No I/O."""
    found = []
    if arrived.flights != outcome.flights:
        found.append(f"{route}: {arrived.flights:,} flights arrived of {outcome.flights:,}")
    shown = arrived.bookings.keys()
    for ids, what in (
        (booked - shown, "booked in the database and did not arrive"),
        (shown & outcome.rolled_back, "rolled back and arrived all the same"),
        (shown - booked - outcome.rolled_back, "not booked in the database and arrived"),
        ({name for name, times in arrived.bookings.items() if times > 1}, "arrived more than once"),
    ):
        if ids:
            found.append(f"{route}: {len(ids)} bookings {what} (such as {', '.join(sorted(ids)[:EXAMPLES_MAX])})")
    return found


def _table(connection: psycopg.Connection[tuple[Any, ...]]) -> Arrived:
    table = sql.Identifier(LEDGER)
    counted = sql.SQL("select count(*) from {} where type = %s").format(table)
    row = connection.execute(counted, (FLIGHT_TYPE,)).fetchone()
    assert row is not None, "a count is one row"
    listed = sql.SQL("select id, count(*) from {} where type = %s group by id").format(table)
    return Arrived(row[0], dict(connection.execute(listed, (bookings.EVENT_TYPE,)).fetchall()))


def _topic(stage: Stage) -> Arrived:
    config = stage.config
    with Topics(config.kafka, config.timing) as topics:
        marks = topics.watermarks(DEPARTURES, range(PARTITIONS))
    flights, found = 0, Counter[str]()
    with Scan(config.kafka, config.timing, f"{config.relay.name}.reckoning") as scan:
        for batch in scan.read({LogPartition(DEPARTURES, number): mark for number, mark in marks.items()}):
            for record in batch:
                headers: dict[str, Any] = dict(record.message.headers() or ())
                if headers.get(TYPE) == FLIGHT_TYPE.encode():
                    flights += 1
                elif headers.get(TYPE) == bookings.EVENT_TYPE.encode():
                    found[headers[ID].decode()] += 1
    return Arrived(flights, found)
