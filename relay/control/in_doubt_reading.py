"""Collects everything in doubt of a relay: what workers said last, and what the monitors show without them.

Nothing here joins a group or writes. Deliveries in doubt come from the monitor alone, so they are seen whether
workers run or not; holds come from the last word of each worker, which outlives it in the control topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from relay.config.model import RelayConfig
from relay.config.routes import RouteConfig, TopicDestination
from relay.control.status import PartitionView, RouteView
from relay.control.status_reading import StatusReader
from relay.delivery.evidence_reading import BeginScan, MonitorView, ProvenOffsets, decoded
from relay.delivery.topic.compaction import why_untold
from relay.delivery.topic.position_note import committed_by
from relay.delivery.topic.stamped_outputs import outputs_of
from relay.delivery.topic.unshown import Outputs, vanished
from relay.kafka import settings
from relay.kafka.groups import Groups
from relay.kafka.reading import PartitionReader
from relay.kafka.topics import VISIBLE_S, TopicFacts, Topics
from relay.message.errors import Stopped, Unreachable
from relay.message.record import LogPartition
from relay.monitor.entries import Begin, Page, Proof
from relay.monitor.in_doubt import Attempt, Doubt, Why, in_doubt
from relay.monitor.index import DedupIndex
from relay.monitor.resolution import (
    Kind,
    Resolution,
    Resolutions,
    Span,
    Subject,
    of_capture,
    of_offsets,
    uncovered,
)
from relay.monitor.rows import MemoryRows
from relay.run.book import ControlBook
from relay.run.following import control_topic
from relay.run.starts import recorded_start
from relay.run.status_record import PartitionStatus, StatusRecord, Waiting
from relay.run.topic_watch import kept
from relay.world import clock

DEADLINE_S: Final = 30.0
Number = tuple[bytes, int]
"""A transaction: its producer's instance, and n."""
LOST: Final = "its payload has left the log unread: a person must let it go, or find it elsewhere"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in doubt. ``since_ms`` is wall time, None if unknown; ``offsets`` counts those of a span."""

    subject: Subject
    route: str
    why: str
    needs_person: bool
    since_ms: int | None
    places: tuple[tuple[LogPartition, int], ...]
    offsets: int | None = None
    resource: str | None = None
    worker: str | None = None
    resolution: Resolution | None = None
    obeyed: bool = False

    def document(self, now_ms: int, alarm_ms: float) -> dict[str, Any]:
        """Return what ``--json`` prints; ``alarm`` if it has been in doubt for longer than the configured time."""
        age = None if self.since_ms is None else max(0, now_ms - self.since_ms)
        return {
            "name": self.subject.text,
            "kind": self.subject.kind.value,
            "route": self.route,
            "why": self.why,
            "needs_person": self.needs_person,
            "since": self.since_ms,
            "age_ms": age,
            "alarm": age is not None and age > alarm_ms,
            "places": [
                {"topic": place.topic, "partition": place.partition, "offset": offset} for place, offset in self.places
            ],
            "offsets": self.offsets,
            "resource": self.resource,
            "worker": self.worker,
            "resolution": None if self.resolution is None else shown(self.resolution, obeyed=self.obeyed),
        }


@dataclass(frozen=True, slots=True)
class Stuck:
    """A partition that waits until something or somebody helps."""

    route: str
    place: LogPartition
    why: str


def shown(resolution: Resolution, *, obeyed: bool) -> dict[str, Any]:
    """Return a resolution for programs."""
    return {
        "id": resolution.id.hex(),
        "subject": resolution.subject.text,
        "decision": resolution.told.name.lower(),
        "who": resolution.who,
        "reason": resolution.reason,
        "at": resolution.at,
        "seen": resolution.seen,
        "obeyed": obeyed,
    }


class InDoubtReader:
    """Reads what is in doubt, now. Use as a context. Raises Unreachable, ConfigError, Stuck.

    ``unseen`` says which database was away, and ``unreadable`` why nothing can be told of a route's deliveries.
    """

    def __init__(self, config: RelayConfig) -> None:
        self.config = config
        given = settings.consumer(config.kafka, config.timing, f"{config.relay.name}.indoubt", log_level=0)
        self.reader, self._stable = (
            PartitionReader(given, committed=committed, clock=clock.monotonic, deadline_s=DEADLINE_S)
            for committed in (False, True)
        )
        self._status = StatusReader(config)
        self._topics = Topics(config.kafka, config.timing)
        self._groups = Groups(config.kafka, config.timing)
        self.book = ControlBook(partial(control_topic, config), "relay indoubt")
        self.decided = Resolutions()
        self.stuck: list[Stuck] = []
        self._today: dict[str, Outputs] = {}
        self.notes: list[str] = []
        self.unseen: Unreachable | None = None
        self.unreadable: dict[str, Stopped] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reader.close()
        self._stable.close()
        self._topics.close()
        self._groups.close()
        self._status.__exit__(kind, error, trace)

    def items(self) -> list[Item]:
        """Return everything in doubt, by route; what else this reader has is set beside it."""
        views = self._status.read()
        records = self._status.records()
        self.notes = list(self._status.notes)
        self.unseen = self._status.unseen
        self.unreadable = {}
        self.decided = self.book.read()
        self.stuck = [
            Stuck(view.name, LogPartition(place.topic, place.partition), place.stuck)
            for view in views
            for place in view.partitions
            if place.stuck
        ]
        return [
            item
            for view in views
            for item in self._of_route(view, _last_words(record for record in records if record.route == view.name))
        ]

    def _of_route(
        self, view: RouteView, words: Mapping[LogPartition, tuple[StatusRecord, PartitionStatus]]
    ) -> Iterator[Item]:
        route = self.config.routes[view.name]
        yield from self._holds(view, words)
        try:
            yield from self._lost(view, words)
            if isinstance(route.to, TopicDestination):
                yield from [self._doubtful(route, doubt) for doubt in self.doubts(route, view)]
        except Stopped as other:
            # Go on: what another version has written stops that route alone.
            self.unreadable[route.name] = other
            self.notes.append(f"route {route.name}: what is in doubt of its deliveries, or lost, was not seen; {other}")

    def doubts(self, route: RouteConfig, view: RouteView) -> list[Doubt]:
        """Return the deliveries in doubt of a topic route, from its monitor."""
        positions = {LogPartition(p.topic, p.partition): p.position or 0 for p in view.partitions}
        assert isinstance(route.to, TopicDestination)
        self._today.pop(route.name, None)
        topic = self.config.monitor_topic(route.name)
        facts = self._topics.describe([topic], settings=False)
        if topic not in facts:
            self.notes.append(f"topic {topic} does not exist; run `relay migrate`")
            return []
        proven = ProvenOffsets(positions)
        lags = kept(self._topics, route.to.topic)
        attempts = [
            attempt
            for number in range(facts[topic].partitions)
            for attempt in self._attempts(route, LogPartition(topic, number), proven, lags, positions)
        ]
        return in_doubt(positions, attempts, proven.found)

    def _attempts(
        self, route: RouteConfig, monitor: LogPartition, proven: ProvenOffsets, lags: Mapping[str, float], inputs: Collection[LogPartition]
    ) -> Iterator[Attempt]:
        """Fold one monitor partition twice: what was begun, and of it what counts."""
        begun, since = BeginScan(0), dict[bytes, int]()
        span = self.reader.watermarks(monitor)
        for offset, at, begin in _begins(self.reader, monitor, span):
            begun.begun(offset, begin)
            since[begin.instance] = at
        # Taken after the high watermark: what is stable then is read below, the rest is still open.
        stable = self._stable.watermarks(monitor)[1]
        fold = proven.evidence()
        visible: set[Number] = set()
        for records in self._stable.read({monitor: (span[0], min(span[1], stable))}):
            for record in records:
                entry = decoded(record)
                if entry is not None:
                    fold.add(record.offset(), entry)
                    if isinstance(entry, Begin):
                        visible.add((entry.instance, entry.n))
        left = {(one.instance, one.n): (at, one) for at, one in begun.last.values() if not fold.is_ended(one.instance, one.n)}
        aborted = [one for key, (at, one) in left.items() if at < stable and key not in visible]
        view = MonitorView(monitor.partition, DedupIndex(monitor.partition, MemoryRows()), fold, 0, 0, scan=begun)
        may_ask = any(lags or self._has_lost(route, one) for one in aborted)
        gone = self._vanished(route, monitor.topic, view, span, inputs) if may_ask else {}
        for key, (at, begin) in left.items():
            why = Why.OPEN if at >= stable else Why.ABORTED
            if why is Why.ABORTED and (key in visible or key in gone):
                why = self._of_torn(route, begin, gone[key] if key in gone else fold.pending(*key), lags)
            yield Attempt(begin, since[begin.instance], why)

    def _vanished(
        self, route: RouteConfig, monitor: str, view: MonitorView, span: tuple[int, int], inputs: Collection[LogPartition]
    ) -> dict[Number, list[Page]]:
        """Return what was aborted in the monitor only, with its entries: the owner settles it like what is torn."""
        stored_by = committed_by(self._groups.stored(self.config.group_id(route.name), inputs))
        found = vanished(self.reader, self._stable, monitor, [view], {view.partition: span}, stored_by, self._outputs(route))
        return {(one.begin.instance, one.begin.n): [page for page in one.pages if page.proof is Proof.SEALED] for one in found}

    def _of_torn(self, route: RouteConfig, begin: Begin, pages: list[Page], lags: Mapping[str, float]) -> Why:
        """The owner judges by the same: what one leaves to a person the other must let a person decide."""
        is_gone = self._has_lost(route, begin) or why_untold(self.reader, begin, pages, lags, clock.wall_ms())
        return Why.UNREADABLE if is_gone else Why.UNSEALED

    def _has_lost(self, route: RouteConfig, begin: Begin) -> bool:
        return isinstance(outputs_of(begin, self._outputs(route), self.reader), str)

    def _outputs(self, route: RouteConfig) -> Outputs:
        """Return where a route delivers to now, as of this look: asked for once, and only where something is torn."""
        if route.name not in self._today:
            assert isinstance(route.to, TopicDestination)
            output, letters = route.to.topic, self.config.deadletter_topic
            facts = self._topics.describe([output, letters], settings=False, wait_s=VISIBLE_S)
            deads, topic_id = frozenset(_places(facts, letters)), facts[output].topic_id if output in facts else b""
            self._today[route.name] = Outputs([*_places(facts, output), *deads], deads, topic_id)
        return self._today[route.name]

    def _doubtful(self, route: RouteConfig, doubt: Doubt) -> Item:
        subject = of_offsets(Kind.DELIVERY, route.name, doubt.place, doubt.first, doubt.next)
        return self._item(
            subject,
            route.name,
            doubt.why.value,
            needs_person=doubt.why.needs_person,
            since_ms=doubt.since_ms,
            places=((doubt.place, doubt.first),),
            offsets=doubt.offsets,
            worker=doubt.worker,
        )

    def _holds(
        self, view: RouteView, words: Mapping[LogPartition, tuple[StatusRecord, PartitionStatus]]
    ) -> Iterator[Item]:
        """One item a capture: its messages may be held in several partitions."""
        held: dict[str, list[tuple[LogPartition, StatusRecord, Waiting]]] = {}
        positions = {LogPartition(p.topic, p.partition): p.position or 0 for p in view.partitions}
        for place, (record, partition) in words.items():
            for waiting in partition.waiting:
                # What the route does not read any more, or is there no more, waits only as long as a worker lives that reads it.
                if place in positions and waiting.first_offset >= positions[place]:
                    held.setdefault(waiting.capture, []).append((place, record, waiting))
        for capture, seen in held.items():
            worst = max(seen, key=lambda one: one[2].needs_person)
            yield self._item(
                of_capture(bytes.fromhex(capture)),
                view.name,
                worst[2].why,
                needs_person=worst[2].needs_person,
                since_ms=min(record.heard_at - waiting.since_ms for _, record, waiting in seen),
                places=tuple((place, waiting.first_offset) for place, _, waiting in seen),
                resource=worst[2].resource,
                worker=worst[1].worker,
            )

    def _lost(
        self, view: RouteView, words: Mapping[LogPartition, tuple[StatusRecord, PartitionStatus]]
    ) -> Iterator[Item]:
        for partition in view.partitions:
            place = LogPartition(partition.topic, partition.partition)
            span = self._lost_span(view, partition, words.get(place))
            for part in self._still_to_decide(view.name, place, span) if span is not None else ():
                subject = of_offsets(Kind.LOST, view.name, place, *part)
                yield self._item(
                    subject, view.name, LOST, needs_person=True, since_ms=None,
                    places=((place, part.first),), offsets=part.next - part.first, worker=partition.owner,
                )  # fmt: skip

    def _still_to_decide(self, route: str, place: LogPartition, span: tuple[int, int]) -> list[Span]:
        """The parts that nobody has decided about, since retention goes on; all of it, once all is decided."""
        told = self.decided.of_route(Kind.LOST, route, [place])
        return list(uncovered(*span, [Span(one.subject.first, one.subject.next) for one in told])) or [Span(*span)]

    def _lost_span(
        self, route: RouteView, view: PartitionView, word: tuple[StatusRecord, PartitionStatus] | None
    ) -> tuple[int, int] | None:
        """Return the offsets that a living worker waits at, or, without one, that the next would stop at."""
        if view.owner is not None and word is not None:
            status = word[1]
            return None if status.lost_first is None or status.lost_next is None else (status.lost_first, status.lost_next)
        if view.position is None and not route.positions_asked:
            return None  # it may have one, and what lies below it is delivered
        place = LogPartition(view.topic, view.partition)
        low = self.reader.watermarks(place)[0]
        position = self._first_position(route.name, place) if view.position is None else view.position
        return None if position is None or position >= low else (position, low)

    def _first_position(self, route: str, place: LogPartition) -> int | None:
        """Where a partition starts that nothing was ever delivered of; None if that is not known, or something was."""
        facts = self._topics.describe([place.topic], settings=False)
        if place.topic not in facts:
            return None
        if isinstance(self.config.routes[route].to, TopicDestination):  # no other route begins anything there
            monitor = LogPartition(self.config.monitor_topic(route), place.partition)
            if any(_begins(self._stable, monitor, self._stable.watermarks(monitor))):
                return None
        return recorded_start(control_topic(self.config), route, place, facts[place.topic].topic_id)

    def _item(self, subject: Subject, route: str, why: str, **more: Any) -> Item:
        resolution = self.decided.about(subject)
        obeyed = resolution is not None and self.decided.is_obeyed(resolution)
        return Item(subject, route, why, resolution=resolution, obeyed=obeyed, **more)


def _places(facts: Mapping[str, TopicFacts], topic: str) -> list[LogPartition]:
    return [LogPartition(topic, number) for number in range(facts[topic].partitions if topic in facts else 0)]


def _begins(reader: PartitionReader, monitor: LogPartition, span: tuple[int, int]) -> Iterator[tuple[int, int, Begin]]:
    for records in reader.read({monitor: span}):
        for record in records:
            entry = decoded(record)
            if isinstance(entry, Begin):
                yield record.offset(), record.timestamp()[1], entry


def _last_words(records: Iterable[StatusRecord]) -> dict[LogPartition, tuple[StatusRecord, PartitionStatus]]:
    """Return what was said last of each partition, by a worker that had taken it over."""
    found: dict[LogPartition, tuple[StatusRecord, PartitionStatus]] = {}
    for record in sorted(records, key=lambda one: one.heard_at):
        for partition in record.partitions:
            if partition.position is not None:
                found[LogPartition(partition.topic, partition.partition)] = (record, partition)
    return found
