"""The audit of a relay: each route's log, outcomes, destination and monitor are read and held against each other.

What is read first bounds what is read later: positions and destination before the log's end, so that a message
that arrives meanwhile is at worst *unseen*, and never a phantom.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from relay.audit import captures, readers, tables
from relay.audit.checker import MUST_BE_ZERO, Checker, Findings, State
from relay.audit.deaths import Deaths
from relay.audit.evidence import Evidence, Proven
from relay.audit.ledger import Ledger, Place
from relay.audit.memory import Memory, is_whole, left_behind, let_go, margin_ms, of_others, recent, said
from relay.audit.neighbours import Untold, beside, foreign, former, remember_all
from relay.audit.route_topics import names_of, needed, ranges_of, ranges_since
from relay.audit.seen import Seen, Watch
from relay.audit.stored_effects import StoredEffects
from relay.config.model import QueueDestination, RelayConfig, RouteConfig, TableDestination, TopicDestination
from relay.kafka.scan import Progress, Range, Scan
from relay.kafka.topics import Topics
from relay.message.errors import ConfigError, RelayError
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD, DELIVERED, SKIPPED, UNKNOWN_OFFSET, InputRange
from relay.monitor.resolution import Kind, Resolution, Resolutions, Told
from relay.run.queues import database_of
from relay.world import clock

Refused = Callable[[str, RelayError], None]
"""(route, why it cannot be audited)."""

COUNTS: Final = (
    "captured", "delivered", "lost", "duplicates", "reordered", "phantoms", "aborted", "in_doubt", "dead_letters",
)  # fmt: skip
MORE_COUNTS: Final = ("conflicts", "unseen", "altered", "expired", "skipped", "repeats", "told", "forgotten")


@dataclass(frozen=True)
class Offence:
    """An offending message by name."""

    kind: str
    place: str
    id: str
    source: str
    why: str


@dataclass
class RouteReport:
    """What the audit of one route found."""

    route: str
    destination: str
    guarantee: str
    findings: Findings
    offences: list[Offence]
    seconds: float
    allow_lag: bool
    ordered: bool

    @property
    def ok(self) -> bool:
        """Is everything zero that must be?"""
        return self.findings.passes(allow_lag=self.allow_lag)

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        findings = self.findings
        if self.ok:
            done = findings.captured - findings.unseen
            order = ", in order" if self.ordered else ""
            dead = f", {findings.captured - findings.unseen - findings.delivered} put aside" * (
                done > findings.delivered
            )
            if findings.recorded >= findings.delivered > 0:
                took = "are recorded to have taken effect, which was not looked at,"
            elif findings.recorded:
                took = f"took effect ({findings.recorded:,} of them are recorded to, which was not looked at)"
            else:
                took = "took effect"
            return f"{self.route}: {findings.delivered:,} of {done:,} captured messages {took} exactly once{order}{dead}."
        wrong = [name for name in (*MUST_BE_ZERO, "unseen") if getattr(findings, name)]
        counts = ", ".join(f"{getattr(findings, name):,} {name.replace('_', ' ')}" for name in wrong)
        lag = "; `--allow-lag` lets pass what is still on its way" if wrong == ["unseen"] else ""
        return f"{self.route}: {counts}{lag}."

    def document(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {
            "ok": self.ok,
            **{name: getattr(self.findings, name) for name in (*COUNTS, *MORE_COUNTS)},
            "destination": self.destination,
            "guarantee": self.guarantee,
            "offenders": [vars(offence) for offence in self.offences],
            "notes": self.findings.notes,
            "seconds": round(self.seconds, 2),
        }


def verify(
    config: RelayConfig,
    routes: Iterable[str],
    *,
    allow_lag: bool = False,
    watch: Watch = lambda *_: None,
    refused: Refused | None = None,
) -> list[RouteReport]:
    """Audit the routes; one that cannot be audited is given to ``refused``, and the others are audited nevertheless.

    Raises ConfigError for an unknown route and Unreachable for a broker that does not answer; without ``refused`` also
    what keeps a route from being audited (a missing topic or table, a database that is away).
    """
    names = named(config, routes)
    group = f"{config.relay.name}.verify"
    with Topics(config.kafka, config.timing) as topics, Scan(config.kafka, config.timing, group) as scan:
        topics.names()  # a broker that is away is told once, not for each route
        reports = []
        for name in names:
            try:
                audit = _RouteAudit(config, config.routes[name], topics, scan, watch)
                reports.append(audit.report(allow_lag=allow_lag))
            except RelayError as error:
                if refused is None:
                    raise
                refused(name, error)
        return reports


def named(config: RelayConfig, routes: Iterable[str]) -> list[str]:
    """Return the routes that are named, or all if none is. Raises ConfigError for one that does not exist."""
    names = list(routes) or list(config.routes)
    unknown = [name for name in names if name not in config.routes]
    if unknown:
        raise ConfigError(
            f"--route {unknown[0]}: there is no such route; there are: {', '.join(config.routes)}"
        )
    return names


class _RouteAudit:
    """One route's audit: ``report`` reads and concludes in the order that bounds each by the one before."""

    def __init__(
        self, config: RelayConfig, route: RouteConfig, topics: Topics, scan: Scan, watch: Watch
    ) -> None:
        self._config = config
        self._route = route
        self._topics = topics
        self._scan = scan
        self._watch = watch
        self._notes: list[str] = []
        self._uuids: dict[str, str] = {}
        self._resolutions = Resolutions()
        self._start = readers.FirstStart()
        self._monitored: dict[LogPartition, Range] = {}
        self._facts = topics.describe(names_of(self._config, self._route), settings=False)
        for name in route.from_:
            needed(self._facts, self._route, name, "the log")

    def report(self, *, allow_lag: bool) -> RouteReport:
        """Read everything and conclude."""
        started = clock.monotonic()
        route, to = self._route, self._route.to
        with ExitStack() as stack:
            self._resolutions = self._obeyed()
            # Before the positions: a living route may pass what retention takes meanwhile.
            begins = {partition: low for partition, (low, _high) in self._log_ranges().items()}
            evidence = self._monitor()
            stores = self._stores(stack)
            seen = self._before(evidence, stores)
            ledger, lows = self._log(stores)
            seen.begins, seen.lows, seen.later = begins, lows, self._since(evidence)
            seen.memory = self._memory(seen, stores)
            # Whatever has both a dead letter and an effect was redriven; that it lags is what it was redriven for.
            letters = seen.deaths.letters
            apart = letters.standing | letters.redriven | seen.later.redriven()
            seen.replaced = _replaced(seen.later, ledger, lows)
            checker = Checker(ledger, ordered=route.order != "none", apart=apart, memory=seen.memory, replaced=seen.replaced)
            if isinstance(to, TopicDestination):
                identify = self._identity()
                batches = self._scan.read(seen.outputs, self._progress(f"output {to.topic}", seen.outputs))
                checker.outputs(
                    list(seen.outputs),
                    readers.outputs(batches, list(seen.outputs), identify, seen.foreign, seen.memory),
                )
            elif isinstance(to, QueueDestination):
                self._stored_effects(stores).queue(checker, ledger, seen, to)
            else:
                self._stored_effects(stores).table(checker, ledger, seen, to)
            findings = self._conclude(checker, seen, stores.get(self._home))
        findings.notes += self._notes
        return RouteReport(
            route.name, to.place, route.guarantee, findings, self._named(findings), clock.monotonic() - started,
            allow_lag, ordered=route.order != "none",
        )  # fmt: skip

    def _monitor(self) -> Evidence:
        """Read the monitor, before the destination: what it proves must then be found there."""
        name = self._config.monitor_topic(self._route.name)
        if name not in self._facts:
            self._notes.append(f"the monitor {name} does not exist: run `relay migrate`")
            return Evidence()
        self._monitored = ranges_of(self._topics, self._facts[name])
        batches = self._scan.read(self._monitored, self._progress("monitor", self._monitored))
        evidence, broken = readers.monitor(batches)
        if broken:
            self._notes.append(f"{broken} records of {name} cannot be read")
        return evidence

    def _since(self, evidence: Evidence) -> Evidence:
        """Add what the monitor took in meanwhile: what a living worker has trimmed from its inbox, it has entered before."""
        if not self._monitored:
            return evidence
        monitor = self._facts[self._config.monitor_topic(self._route.name)]
        ranges = ranges_since(self._topics, monitor, self._monitored)
        return readers.monitor(self._scan.read(ranges), evidence)[0]

    def _memory(self, seen: Seen, stores: Mapping[str, tables.Store]) -> Memory:
        """Return how far back log and monitor remember; what has left a queue is counted by what is recorded."""
        to, knows_all = self._route.to, is_whole(seen.lows, self._start.offsets, self._monitored)
        if isinstance(to, TopicDestination):
            has_all = remember_all(self._config, beside(self._config, self._route), self._topics)
            untold = None if has_all else Untold(self._config, self._route, self._topics, seen.later)
            if knows_all:
                return Memory(others=untold)
            return Memory(recent(seen.evidence, self._monitored, margin_ms(self._config.timing)), seen.later.digests(), untold)
        if isinstance(to, QueueDestination) or knows_all:
            return Memory()
        return Memory({}, self._stored_effects(stores).named(seen.later, to))

    def _before(self, evidence: Evidence, stores: Mapping[str, tables.Store]) -> Seen:
        """Read the positions first, then the ends of what they promise: dead letters and outputs."""
        config, route = self._config, self._route
        partitions = [
            LogPartition(name, p) for name in route.from_ for p in range(self._facts[name].partitions)
        ]
        positions = self._scan.committed(config.group_id(route.name), partitions)
        self._look_again()
        seen = Seen(positions, evidence, Deaths(config, route, self._facts, self._topics, self._scan))
        if not isinstance(route.to, TopicDestination):
            kept = stores[self._home].positions(config.relay.name, route.name)
            ids = {self._facts[name].topic_id: name for name in route.from_}
            # The store's position is the cursor; the group's offset is only a hint (design section 6).
            seen.positions = {LogPartition(ids[t], p): at for (t, p), at in kept.items() if t in ids}
        else:
            seen.outputs = ranges_of(self._topics, needed(self._facts, self._route, route.to.topic, "the destination"))
        seen.deaths.read(self._progress)
        seen.foreign = foreign(config, route, self._topics, self._scan) - seen.evidence.instances
        return seen

    def _look_again(self) -> None:
        """Know the partitions that were added meanwhile: what is read later must hold all that was read before promises."""
        self._facts |= self._topics.describe(self._facts, settings=False)

    def _log_ranges(self) -> dict[LogPartition, Range]:
        found: dict[LogPartition, Range] = {}
        for name in self._route.from_:
            found |= ranges_of(self._topics, self._facts[name])
        return found

    def _log(self, stores: Mapping[str, tables.Store]) -> tuple[Ledger, dict[LogPartition, int]]:
        """Read the log from where the route started, then ask the resources about what no marker decided."""
        self._look_again()
        ranges = self._log_ranges()
        self._start = self._first_start()
        for partition, start in self._start.offsets.items():
            if partition in ranges and ranges[partition][0] < start:
                ranges[partition] = (min(start, ranges[partition][1]), ranges[partition][1])
        to = self._route.to
        match = self._match(to, stores[to.resource]) if isinstance(to, TableDestination) else None
        ledger = Ledger(list(ranges), matches=match is not None)
        batches = self._scan.read(ranges, self._progress("log", ranges))
        readers.fill(ledger, batches, self._route, self._identity(), match)
        ledger.decide(captures.decisions(self._config, ledger, self._uuids, self._resolutions))
        # What left the log while it was read may be missed in it as well, and of a topic's namesake all has.
        lows = {partition: low for partition, (low, _high) in self._log_ranges().items()}
        return ledger, {partition: low for partition, low in lows.items() if partition.topic not in self._start.made_again}

    @staticmethod
    def _match(to: TableDestination, store: tables.Store) -> readers.Match | None:
        column = readers.id_column(to)
        return readers.table_match(to, store.as_stored(to.table, column)) if column is not None else None

    def _stored_effects(self, stores: Mapping[str, tables.Store]) -> StoredEffects:
        return StoredEffects(
            self._config, self._route, stores[self._home], self._topics, self._scan, self._watch, self._notes
        )

    def _conclude(self, checker: Checker, seen: Seen, store: tables.Store | None) -> Findings:
        missing, lows = set(checker.missing()), seen.lows
        wanted = missing | checker.unknown.keys()
        entered = list(seen.evidence.proven(missing)) if missing else []
        outcomes = {entry.digest: entry.outcome for entry in entered}
        expired: set[bytes] = set()
        for entry in seen.later.proven(wanted) if wanted else ():
            if entry.digest in missing:
                # Of what was entered meanwhile only this needs no trace in what was read before.
                outcomes |= {entry.digest: SKIPPED} if entry.outcome == SKIPPED else {}
            elif entry.outcome == DELIVERED and _has_left(entry, lows):
                expired.add(entry.digest)
        expired |= former(self._config, self._topics, self._scan, checker.unknown.keys() - expired)
        # Without a stored position, and with nothing entered, a partition still stands where the route started.
        untouched = {name: at for name, at in self._start.offsets.items() if name not in seen.evidence.partitions}
        letters = seen.deaths.letters
        state = State(
            {**untouched, **seen.positions}, seen.begins, letters.standing,
            {entry.digest for entry in entered if entry.outcome == DEAD and seen.deaths.trimmed.may_cover(entry)}, outcomes,
            seen.evidence.open_ranges(),
            [InputRange(*one.subject.place, one.subject.first, one.subject.next) for one in self._said_delivered(lows)],
            self._dying(store, missing) if store is not None and missing else (),
            letters.redriven,
            seen.deaths.beside(
                letters.deaths_of(checker.met(letters.standing)), lambda deaths: self._since(seen.evidence).proven(deaths)
            ),
            seen.replaced if any(low for low, _high in seen.outputs.values()) else (),
        )
        findings = checker.conclude(state, expired)
        self._note_forgotten(findings, lows, seen)
        return findings

    def _dying(self, store: tables.Store, missing: Collection[bytes]) -> set[bytes]:
        """Return which missing messages the inbox calls dead: their dead letters follow its commit, they are not lost."""
        rows = store.inbox(self._config.relay.name, self._route.name)
        return {row.digest for row in rows if row.outcome == DEAD and row.digest in missing}

    def _note_forgotten(self, findings: Findings, lows: Mapping[LogPartition, int], seen: Seen) -> None:
        """Say which offences may be no more than what retention took from one side and left on the other."""
        self._notes += said(findings.forgotten - seen.memory.of_others, lows, self._monitored)
        self._notes += of_others(seen.memory.of_others)
        self._notes += let_go(self._resolutions, self._route.name, lows)
        ran = bool(self._start.is_recorded or seen.positions or seen.evidence.instances)
        self._notes += left_behind(findings, self._route, ran=ran, lows=lows, outputs=seen.outputs)

    def _named(self, findings: Findings) -> list[Offence]:
        offences = []
        for kind, place, why in findings.offenders:
            name, source = "", ""
            if isinstance(place, Place):
                name, source = readers.describe(self._scan, place.topic, place.partition, place.offset)
            offences.append(Offence(kind, str(place), name, source, why))
        return offences

    def _first_start(self) -> readers.FirstStart:
        if self._config.control_topic not in self._facts:
            return readers.FirstStart()
        ids = {name: self._facts[name].topic_id for name in self._route.from_}
        ranges = ranges_of(self._topics, self._facts[self._config.control_topic])
        return readers.FirstStart(self._scan.read(ranges), self._route.name, ids)

    def _obeyed(self) -> Resolutions:
        """Read what persons decided; what no owner has obeyed decides nothing."""
        if self._config.control_topic not in self._facts:
            return Resolutions()
        return readers.resolutions(self._scan.read(ranges_of(self._topics, self._facts[self._config.control_topic])))

    def _said_delivered(self, places: Iterable[LogPartition]) -> list[Resolution]:
        said = self._resolutions.of_route(Kind.DELIVERY, self._route.name, places)
        return [one for one in said if one.told is Told.COMMIT and self._resolutions.is_obeyed(one)]

    def _stores(self, stack: ExitStack) -> dict[str, tables.Store]:
        """Open every resource; one that is away leaves its captures undecided, which is said. Raises for the route's own."""
        stores: dict[str, tables.Store] = {}
        to = self._route.to
        if isinstance(to, QueueDestination):
            store = tables.open_store(self._home, database_of(self._config, to.queue))
            stack.callback(store.close)
            stores[self._home] = store
        for name, resource in self._config.resources.items():
            try:
                store = tables.open_store(name, resource)
                stack.callback(store.close)
                self._uuids[name] = store.uuid()
            except RelayError as error:
                if name == self._home:
                    raise type(error)(f"routes.{self._route.name}: {error}") from error
                # In doubt: without its rows, what no marker decides stays undecided.
                self._notes.append(str(error))
            else:
                stores[name] = store
        return stores

    @property
    def _home(self) -> str:
        """The database of a table or queue route; a queue's name is no resource's, since it has a space."""
        to = self._route.to
        return to.resource if isinstance(to, TableDestination) else f"queue {getattr(to, 'queue', '')}"

    def _identity(self) -> readers.Identity:
        return readers.Identity(self._route, {name: self._facts[name].topic_id for name in self._route.from_})

    def _progress(self, step: str, ranges: Mapping[LogPartition, Range]) -> Progress:
        done = dict.fromkeys(ranges, 0)
        total = sum(high - low for low, high in ranges.values())

        def moved(partition: LogPartition, offset: int) -> None:
            done[partition] = offset - ranges[partition][0]
            self._watch(f"{self._route.name}: {step}", sum(done.values()), total)

        return moved


def _replaced(later: Evidence, ledger: Ledger, lows: Mapping[LogPartition, int]) -> set[bytes]:
    """Return the messages that were delivered from a record which has left the log, where it has a repeat now."""
    if not any(lows.values()) and later.partitions <= lows.keys():
        return set()
    found = set()
    for entry in later.proven_of(ledger.index):
        place = ledger.place(ledger.index[entry.digest])
        is_here = (*entry.partition, entry.offset) == place
        if entry.outcome == DELIVERED and entry.offset != UNKNOWN_OFFSET and not is_here and _has_left(entry, lows):
            found.add(entry.digest)
    return found


def _has_left(entry: Proven, lows: Mapping[LogPartition, int]) -> bool:
    """May the message of an entry have left the log, which has lost what lies below ``lows``, or be of a topic that is not read any more?

    Of what a settlement found in outputs alone nobody knows where it lay in the log.
    """
    if entry.partition not in lows:
        return True
    return entry.offset < lows[entry.partition] if entry.offset != UNKNOWN_OFFSET else any(lows.values())
