"""How far back log and monitor remember: of an effect that is older than both nothing tells whether it ever had a message."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from relay.audit.evidence import Evidence
from relay.audit.ledger import Place
from relay.config.routes import RouteConfig
from relay.config.timing import Timing
from relay.kafka.scan import Range
from relay.message.envelope import OUT_INSTANCE, OUT_N
from relay.message.record import LogPartition
from relay.monitor.resolution import Kind, Resolutions

if TYPE_CHECKING:
    from relay.audit.checker import Findings


def is_whole(lows: Mapping[LogPartition, int], starts: Mapping[LogPartition, int], monitored: Mapping[LogPartition, Range]) -> bool:
    """Whether log or monitor still has all that the route was ever given: retention took nothing from one of them."""
    log = all(low <= starts.get(place, 0) for place, low in lows.items())
    return log or not any(low for low, _high in monitored.values())


class Others(Protocol):
    """What other routes may have put into the same output topic, without anything that tells of it any more."""

    def may_be(self, key: bytes, writer: bytes) -> bool:
        """May this effect of ``writer``, a producer instance in hex, be such?"""


class Memory:
    """Says which places of a destination are older than all that is remembered, or may be another route's.

    An output topic tells its age: records follow each other, and each names the transaction that it is of. ``recent`` is each
    instance's first transaction of which the monitor must have the entries, so that from the first record of such a
    one on everything in its partition is remembered. The rows of a table tell nothing of the kind.
    """

    def __init__(
        self, recent: Mapping[bytes, int] | None = None, named: Collection[bytes] = (), others: Others | None = None
    ) -> None:
        """``recent``: None where log or monitor is whole, so that nothing is older. ``named`` are what monitors still tell of.

        ``others``: None where no other route's monitor has forgotten anything.
        """
        self.is_whole = recent is None
        self.of_others = 0
        """How many effects were taken for those of an instance that other routes' monitors may have forgotten."""
        self._recent = {instance.hex().encode(): n for instance, n in (recent or {}).items()}
        self._named = named
        self._others = others
        self._writer = b""
        self._reached: set[LogPartition] = set()

    @property
    def asks_records(self) -> bool:
        """Do the headers of an output topic's records matter?"""
        return not self.is_whole or self._others is not None

    def take(self, partition: LogPartition, headers: Mapping[str, bytes]) -> None:
        """Take the next record of an output partition, before it is asked about."""
        self._writer = headers.get(OUT_INSTANCE) or b""
        if self.is_whole or partition in self._reached:
            return  # as for nearly all records: nothing more of them needs to be read
        first = self._recent.get(self._writer)
        number = headers.get(OUT_N) or b""
        if first is not None and number.isdigit() and len(number) < 20 and int(number) >= first:
            self._reached.add(partition)

    def lacks(self, key: bytes, where: Place | str) -> bool:
        """May the message of this effect, which the log does not have, have left both log and monitor, or be another route's?"""
        if key in self._named:
            return False
        if self._others is not None and self._writer and self._others.may_be(key, self._writer):
            self.of_others += 1
            return True
        if self.is_whole:
            return False
        return isinstance(where, str) or LogPartition(where.topic, where.partition) not in self._reached


def margin_ms(timing: Timing) -> int:
    """Return by how much a page must be younger than what is lost, for everything behind its outputs to be remembered.

    One transaction takes that half at most: an output's record may be so much older than its entry, and so may the entry of the
    next record be than that.
    """
    return 2 * int(1000 * timing.transaction_timeout)


def recent(evidence: Evidence, monitored: Mapping[LogPartition, Range], margin_ms: int) -> dict[bytes, int]:
    """Return each instance's first transaction that is younger than all that the monitor has lost.

    That is by the brokers' times, since each of its partitions is trimmed on its own.
    """
    since = max((evidence.oldest(place.partition) for place, (low, _high) in monitored.items() if low), default=0)
    return evidence.first_since(since + margin_ms)


def said(forgotten: int, lows: Mapping[LogPartition, int], monitored: Mapping[LogPartition, Range]) -> list[str]:
    """Return the note on effects that may be older than log and monitor, none if there is no such effect."""
    if not forgotten:
        return []
    log = next(str(Place(*name, low)) for name, low in lows.items() if low)
    monitor = next(str(Place(*name, low)) for name, (low, _high) in monitored.items() if low)
    words = (
        f"the log begins at {log} and the monitor at {monitor}: {forgotten:,} effects may be older than both, and nothing "
        "tells any more of which messages they are (timing.monitor_retention says how long something does)"
    )
    return [words]


def of_others(effects: int) -> list[str]:
    """Return the note on effects that may be those of other routes, none if there is no such effect."""
    if not effects:
        return []
    words = (
        f"{effects:,} effects are of workers that no monitor tells of any more, and no message of this route has their identity: they may be "
        "those of another route, whose monitor has forgotten them"
    )
    return [words]


def let_go(resolutions: Resolutions, route: str, places: Iterable[LogPartition]) -> list[str]:
    """Return the note on what left the log unread, and a person has let go: nothing can count it as lost any more."""
    gone = [one for one in resolutions.of_route(Kind.LOST, route, places) if resolutions.is_obeyed(one)]
    if not gone:
        return []
    first, others = gone[0], len(gone) - 1
    offsets = sum(one.subject.next - one.subject.first for one in gone)
    words = (
        f"{offsets:,} offsets left the log unread, and were passed as a person said ({first.subject.text}, by {first.who}: {first.reason!r}"
        f"{f', and {others} more' * bool(others)}; `relay indoubt list --json` has all): what was lost there is not counted"
    )
    return [words]


def left_behind(
    findings: Findings, route: RouteConfig, *, ran: bool, lows: Mapping[LogPartition, int], outputs: Mapping[LogPartition, Range]
) -> list[str]:
    """Return notes on offences that may be no more than what retention, or a former route, left on one side. ``ran``: tells anything that it did?"""
    notes = []
    if findings.delivered and not ran:
        notes.append(
            "nothing tells that this route ever ran: what lies at its destination came from elsewhere, as from a route or a relay of a "
            f"former name, and it delivers all that it begins with (start = {route.start!r}) once more"
        )
    begins = [str(Place(*name, low)) for name, low in lows.items() if low]
    if findings.phantoms and begins:
        notes.append(
            f"the log begins at {begins[0]}: of a monitor that was deleted and made again since then, all that is older counts "
            "as phantoms"
        )
    begins = [str(Place(*name, low)) for name, (low, _high) in outputs.items() if low]
    if findings.lost and begins:
        notes.append(
            f"the destination begins at {begins[0]}: what it has forgotten and the log still has counts as lost; keep "
            "the destination at least as long as the log"
        )
    return notes
