"""The result: the auditor's word, the reader's, and what the database knows of its own captures; clean only if all agree."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from relay.audit.verify import RouteReport
from relay.chaos.watching import MessageId, Watched
from relay.control.status import RouteView
from relay.message.record import LogPartition

CLEAN: Final = "clean"
EXAMPLES_MAX: Final = 3


@dataclass
class Result:
    """What a run came to; ``ends`` are the ends of processes that the run did not bring about itself.

    ``disks`` says what a full disk was on this machine.
    """

    seed: int
    seconds: float
    directory: str
    faults: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    reports: list[RouteReport] = field(default_factory=list)
    reader: Watched = field(default_factory=Watched)
    complaints: list[str] = field(default_factory=list)
    disks: str = ""

    @property
    def ok(self) -> bool:
        """Is there nothing to complain of?"""
        return not self.complaints

    @property
    def struck(self) -> int:
        """How many faults really happened."""
        return sum(self.faults.values())

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "ok": self.ok,
            "verdict": CLEAN if self.ok else "; ".join(self.complaints),
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "directory": self.directory,
            "faults": self.struck,
            "faults_by_kind": self.faults,
            "faults_missed": self.missed,
            "ends": self.ends,
            "routes": {report.route: report.document() for report in self.reports},
            "reader": vars(self.reader),
            "complaints": self.complaints,
            "disks": self.disks,
        }


def reader_complaints(watched: Watched) -> list[str]:
    """Return what the reader saw that it must not see. No I/O."""
    counts = {
        "duplicates": watched.duplicates,
        "aborted messages": watched.aborted,
        "inversions": watched.inversions,
        "phantoms": watched.phantoms,
    }
    wrong = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return [f"the reader saw {wrong} (such as {watched.examples[0]})"] if wrong else []


def audit_complaints(reports: list[RouteReport]) -> list[str]:
    """Return what the audit found wrong; dead letters, too, since nothing here deserves one. No I/O."""
    found = [report.sentence for report in reports if not report.ok]
    counts = {report.route: report.findings.dead_letters for report in reports}
    return found + [f"{route}: {count} dead letters" for route, count in counts.items() if count]


def not_passed(
    routes: Iterable[RouteView], stood: Mapping[LogPartition, int], seconds: float, latest: Container[str] = ()
) -> list[str]:
    """Return what the workers have not passed in so many seconds of what stood in the logs. No I/O.

    Of a route that starts at the ``latest`` nothing is stored where nothing has come since.
    """
    found = []
    for route in routes:
        for one in route.partitions:
            end = stood.get(LogPartition(one.topic, one.partition), 0)
            if (one.position is not None or route.name not in latest) and (one.position or 0) < end:
                at = "not known" if one.position is None else one.position
                place = f"{one.topic}[{one.partition}]"
                found.append(f"{route.name}: {place} ended at {end} when all was healed, and {seconds:g} s later the position is {at}")
    return found


def compare(route: str, noted: set[MessageId], arrived: Mapping[MessageId, int], sources: set[bytes]) -> list[str]:
    """Compare what the publishers' database committed with what arrived of these sources. No I/O."""
    shown = {message for message in arrived if message[0] in sources}
    found = []
    for ids, what in (
        (noted - shown, "committed in the database and did not arrive"),
        (shown - noted, "not committed in the database and arrived"),
        ({message for message in shown if arrived[message] > 1}, "arrived more than once"),
    ):
        if ids:
            names = sorted(b"/".join(message).decode("utf-8", "replace") for message in ids)
            found.append(f"{route}: {len(ids)} messages {what} (such as {', '.join(names[:EXAMPLES_MAX])})")
    return found
