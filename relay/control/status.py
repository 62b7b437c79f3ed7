"""From what workers say and brokers know to a word per route: a worker that makes no progress is not "running".

Pure: it is given every fact, the time included. Two ages are judged, both for display only. How old a record is
compares the broker's wall clock (the worker's, where the broker does not say when it took the record) with the reader's, so
their hosts' clocks must agree within a few seconds; how long nothing moved compares two times of the same worker, so
that no other clock matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final

from relay.config.routes import RouteConfig
from relay.message.record import LogPartition
from relay.run.restarts import LATELY_S
from relay.run.status_record import PERIOD_S, PartitionStatus, StatusRecord, is_of_handlers

GONE_AFTER_MS: Final = round(3 * PERIOD_S * 1000)
AGED_SHARE: Final = 0.8
"""Of a topic's retention: what is older and not delivered raises an alarm, while there is time."""
RECOVERING_SILENCE_MS: Final = 60_000
"""A recovery reads and fences on the worker's one thread; it writes when it begins and when it is done."""
STALLED_AFTER_MS: Final = 30_000
FAILS_AGAIN: Final = 3
"""So many restarts within an hour are no accident any more, though the route goes on in between."""
FAILS_OFTEN: Final = 20
"""With so many, a process lives for minutes at most: too short to be called stalled, whether it delivers anything or not."""
HANDLERS_SHOWN_MS: Final = 86_400_000
"""For so long handlers are counted that failed: nobody says when the last of them ended."""
FORGOTTEN_AFTER_MS: Final = 3_600_000
"""A worker that ended or went missing so long ago, or so long before the last one, is not shown any more beside the others."""


class State(Enum):
    """What a worker or a route does, the worst first."""

    STUCK = "stuck"
    STALLED = "stalled"
    GONE = "gone"
    STOPPED = "stopped"
    RECOVERING = "recovering"
    DRAINING = "draining"
    RUNNING = "running"
    IDLE = "idle"

    @property
    def is_wrong(self) -> bool:
        """Does somebody have to look after it?"""
        return self in (State.STUCK, State.STALLED, State.GONE, State.STOPPED)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters found in the topic; ``complete`` is False if only its latest records were read."""

    count: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True

    @property
    def commonest(self) -> str | None:
        """The code most of them share; the first by name of several."""
        return min(self.causes, key=lambda code: (-self.causes[code], code), default=None)


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """What is known of a route. ``committed`` is None where the place of the positions could not be asked."""

    route: RouteConfig
    records: Sequence[StatusRecord]
    ends: Mapping[LogPartition, int]
    committed: Mapping[LogPartition, int] | None
    dead: DeadLetters = field(default_factory=DeadLetters)
    aged_below: Mapping[LogPartition, int] = field(default_factory=dict)
    """What lies below these offsets has used up most of its topic's retention; only where that is known."""
    begins: Mapping[LogPartition, int] = field(default_factory=dict)
    """Where the log begins now."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as it is shown; ``age_ms`` is how old its last word is, ``truncated`` if that had no room for all."""

    worker: str
    state: State
    why: str | None
    host: str
    pid: int
    age_ms: int
    started_at: int
    lag: int
    partitions: int
    truncated: bool
    last_error: str | None
    last_error_age_ms: int | None = None
    restarts: int = 0
    fails_again: str | None = None
    """A sentence, if its processes fail again and again."""
    fails_often: bool = False


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A log partition as it is shown; ``owner`` is the living worker that has it."""

    topic: str
    partition: int
    owner: str | None
    position: int | None
    end: int
    lag: int | None
    last_progress_at: int | None
    held: int = 0
    waiting: tuple[Mapping[str, Any], ...] = ()
    lanes_blocked: int = 0
    in_doubt: int = 0
    stuck: str | None = None
    nears_retention: bool = False
    """Will what the position waits at soon leave the log?"""


@dataclass(frozen=True, slots=True)
class RouteView:
    """A route as it is shown; ``counts`` are of the workers shown, since each started.

    Without ``positions_asked`` a partition without a position may have one: its database could not be asked.
    """

    name: str
    state: State
    why: str | None
    guarantee: str
    identity_note: str | None
    workers: tuple[WorkerView, ...]
    partitions: tuple[PartitionView, ...]
    counts: Mapping[str, int]
    dead: DeadLetters
    positions_asked: bool

    @property
    def needs_attention(self) -> bool:
        """Does somebody have to look after it?"""
        return (
            self.state.is_wrong
            or any(partition.nears_retention for partition in self.partitions)
            or any(worker.fails_often for worker in self.workers)
        )

    @property
    def lag(self) -> int | None:
        """Messages and markers between positions and ends; None if a position is not known."""
        lags = [partition.lag for partition in self.partitions]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "state": self.state.value,
            "why": self.why,
            "guarantee": self.guarantee,
            "identity_note": self.identity_note,
            "lag": self.lag,
            "held": sum(partition.held for partition in self.partitions),
            "in_doubt": sum(partition.in_doubt for partition in self.partitions),
            "dead_letters": self.dead.count,
            "dead_letters_complete": self.dead.complete,
            "commonest_cause": self.dead.commonest,
            "causes": dict(self.dead.causes),
            "counts": dict(self.counts),
            "workers": [{**asdict(worker), "state": worker.state.value} for worker in self.workers],
            "partitions": [asdict(partition) for partition in self.partitions],
        }


def judge_worker(record: StatusRecord, now_ms: int) -> tuple[State, str | None]:
    """Return what the worker does and, if that is not plain, why."""
    if record.state == "stopped":
        return State.STOPPED, record.last_error
    age_ms = now_ms - record.heard_at
    silence_ms = RECOVERING_SILENCE_MS if record.state == "recovering" else GONE_AFTER_MS
    if age_ms > silence_ms:
        return State.GONE, f"it said nothing for {age_ms / 1000:.0f} s"
    stuck = [partition.stuck for partition in record.partitions if partition.stuck]
    if stuck or record.state == "stuck":
        return State.STUCK, stuck[0] if stuck else record.last_error
    stalled = _stalled(record)
    if stalled is not None:
        return State.STALLED, stalled
    if record.state in ("recovering", "draining"):
        return State(record.state), None
    return (State.RUNNING if any(partition.lag for partition in record.partitions) else State.IDLE), None


def _stalled(record: StatusRecord) -> str | None:
    for partition in record.partitions:
        still_ms = record.at - (partition.last_progress_at or record.started_at)
        if partition.lag > 0 and still_ms >= STALLED_AFTER_MS:
            return _stall(partition, still_ms)
    failing_ms = record.at - (record.failing_since or record.at)
    if record.state == "recovering" and failing_ms >= STALLED_AFTER_MS:
        return f"it cannot take over, for {failing_ms / 1000:.0f} s: {record.last_error}"
    return None


def _stall(partition: PartitionStatus, still_ms: int) -> str:
    place = f"{partition.topic}[{partition.partition}] did not move for {still_ms / 1000:.0f} s, lag {partition.lag}"
    if not partition.waiting:
        return f"{place}; {partition.unread}" if partition.unread else place
    oldest = max(partition.waiting, key=lambda waiting: waiting.since_ms)
    return f"{place}; {partition.held} held, the oldest for capture {oldest.capture} ({oldest.why})"


def view(facts: RouteFacts, now_ms: int) -> RouteView:
    """Return the route as it is shown at ``now_ms`` (wall milliseconds of the reader)."""
    judged = [(record, *judge_worker(record, now_ms)) for record in facts.records]
    living = [record for record, state, _ in judged if state not in (State.GONE, State.STOPPED)]
    # Where nobody lives, those that left last tell why; what others had counted long ago is no news.
    last = now_ms if living else max((record.heard_at for record in facts.records), default=now_ms)
    shown = [one for one in judged if one[0] in living or last - one[0].heard_at <= FORGOTTEN_AFTER_MS]
    workers = tuple(
        _worker(record, state, why, now_ms)
        for record, state, why in sorted(shown, key=lambda one: one[0].worker)
    )
    partitions = tuple(_partitions(facts, living))
    state, why = _route_state([worker for worker in workers if _lives(worker.state)], workers, partitions)
    aging = (_aging(partition, facts.begins) for partition in partitions if partition.nears_retention)
    failing = (worker.fails_again for worker in workers)
    reasons = [why, next(aging, None), next(filter(None, failing), None)]
    why = "; ".join(reason for reason in reasons if reason) or None
    return RouteView(
        name=facts.route.name,
        state=state,
        why=why,
        guarantee=facts.route.guarantee,
        identity_note=facts.route.identity_note,
        workers=workers,
        partitions=partitions,
        counts=_counts(record for record, _, _ in shown),
        dead=facts.dead,
        positions_asked=facts.committed is not None,
    )


def beside(records: Iterable[StatusRecord], routes: Collection[str], now_ms: int) -> Iterator[str]:
    """Yield a sentence for each route that these do not name and a worker runs all the same: its own word is all that shows it."""
    living = {record.route: record for record in records if record.route not in routes and _lives(judge_worker(record, now_ms)[0])}
    for name, record in sorted(living.items()):
        yield (
            f"route {name} is not in this configuration, and {record.worker} (process {record.pid} on {record.host}) runs it: if "
            "it was renamed or taken out, stop that worker, or it goes on to deliver beside the others"
        )


def handlers_lately(records: Iterable[StatusRecord], now_ms: int) -> Iterator[StatusRecord]:
    """Yield what processes of `relay work` said that were started after a failure, within the last day."""
    return (record for record in records if is_of_handlers(record) and now_ms - record.heard_at < HANDLERS_SHOWN_MS)


def failing_handlers(records: Iterable[StatusRecord], now_ms: int) -> Iterator[str]:
    """Yield a sentence for each of them, for an hour after the last of so many restarts."""
    for record in sorted(handlers_lately(records, now_ms), key=lambda one: one.worker):
        ago_s = max(0, now_ms - record.heard_at) / 1000
        if record.restarts_lately >= FAILS_AGAIN and ago_s < LATELY_S:
            queue, _, subscriber = record.route.partition("/")
            yield (
                f"queue {queue}: {record.worker} of `relay work` for {subscriber}, on {record.host}, failed and was started again "
                f"{record.restarts_lately} times within an hour, last {ago_s:.0f} s ago after: {record.ended_by}; the log of that "
                "`relay work` has what each said last"
            )


def exit_code(views: Iterable[RouteView]) -> int:
    """Return 0 if every route runs or idles, none loses messages to retention soon, and no worker fails often; else 1."""
    return 1 if any(route.needs_attention for route in views) else 0


def document(relay: str, at_ms: int, views: Sequence[RouteView], notes: Sequence[str]) -> dict[str, Any]:
    """Return what programs are told of all routes at once, at ``at_ms`` (wall milliseconds)."""
    return {
        "relay": relay,
        "at": at_ms,
        "ok": exit_code(views) == 0,
        "routes": {route.name: route.document() for route in views},
        "notes": list(notes),
    }


def _lives(state: State) -> bool:
    return state not in (State.GONE, State.STOPPED)


def _worker(record: StatusRecord, state: State, why: str | None, now_ms: int) -> WorkerView:
    fails_again = _fails_again(record) if _lives(state) else None
    return WorkerView(
        worker=record.worker,
        state=state,
        why=why,
        host=record.host,
        pid=record.pid,
        age_ms=max(0, now_ms - record.heard_at),
        started_at=record.started_at,
        lag=sum(partition.lag for partition in record.partitions),
        partitions=len(record.partitions),
        truncated=record.truncated,
        last_error=record.last_error,
        last_error_age_ms=None if record.last_error_at is None else max(0, now_ms + record.ahead_ms - record.last_error_at),
        restarts=record.restarts,
        fails_again=fails_again,
        fails_often=fails_again is not None and record.restarts_lately >= FAILS_OFTEN,
    )


def _fails_again(record: StatusRecord) -> str | None:
    """Return a sentence, for an hour after the last of so many restarts."""
    if record.restarts_lately < FAILS_AGAIN or record.at - record.started_at >= 1000 * LATELY_S:
        return None
    return f"{record.worker} failed and was started again {record.restarts_lately} times within an hour, last after: {record.ended_by}"


def _route_state(
    living: Sequence[WorkerView], workers: Sequence[WorkerView], partitions: Sequence[PartitionView]
) -> tuple[State, str | None]:
    if not living:
        if not workers:
            return State.STOPPED, "no worker has reported; start them with `relay run`"
        # Who left last knows best: others may have been stopped for good, or with a former name.
        worst = min(workers, key=lambda worker: (worker.state is not State.GONE, worker.age_ms))
        return worst.state, f"no worker lives: {worst.worker} is {worst.state.value}" + (f": {worst.why}" if worst.why else "")
    for state in (State.STUCK, State.STALLED, State.RECOVERING, State.DRAINING):
        found = next((worker for worker in living if worker.state is state), None)
        if found is not None:
            return state, f"{found.worker}: {found.why}" if found.why else None
    orphans = [partition for partition in partitions if partition.owner is None and partition.lag != 0]
    if orphans:
        orphan = f"{orphans[0].topic}[{orphans[0].partition}]"
        curt = next((worker for worker in living if worker.truncated), None)
        if curt is not None:
            return State.RUNNING, f"{curt.worker} has more to say than a status record holds: it may own {orphan}"
        return State.RUNNING, f"{orphan} is owned by no worker at the moment"
    return (State.RUNNING if any(partition.lag for partition in partitions) else State.IDLE), None


def _partitions(facts: RouteFacts, living: Sequence[StatusRecord]) -> Iterable[PartitionView]:
    said: dict[LogPartition, tuple[StatusRecord, PartitionStatus]] = {}
    # In a rebalance two workers may claim one: the later word counts.
    for record in sorted(living, key=lambda one: one.heard_at):
        for partition in record.partitions:
            said[LogPartition(partition.topic, partition.partition)] = (record, partition)
    for place in sorted(set(facts.ends) | set(said)):
        owner, status = said.get(place, (None, None))
        end = facts.ends.get(place, status.end if status and status.end is not None else 0)
        position = None if facts.committed is None else facts.committed.get(place)
        if position is None and status is not None:
            position = status.position
        lag = _lag(position, end, status)
        yield PartitionView(
            topic=place.topic,
            partition=place.partition,
            owner=None if owner is None else owner.worker,
            position=position,
            end=end,
            lag=lag,
            nears_retention=bool(lag and position is not None and position < facts.aged_below.get(place, 0)),
            **_said(status, 0 if owner is None else owner.ahead_ms),
        )


def _aging(partition: PartitionView, begins: Mapping[LogPartition, int]) -> str:
    position, begin = partition.position or 0, begins.get(LogPartition(partition.topic, partition.partition), 0)
    if position < begin:
        return (
            f"{partition.topic}[{partition.partition}] stands at offset {position}, and the log begins at {begin}: "
            f"{begin - position} offsets left it; `relay indoubt list` names what a person must let go"
        )
    return (
        f"{partition.topic}[{partition.partition}] waits at offset {partition.position}, which has used up "
        f"{100 * AGED_SHARE:.0f} % of the topic's retention (retention.ms or retention.bytes): raise that, or what it waits for is lost"
    )


def next_by_size(low: int, high: int, least: int) -> int:
    """Return below which offset lies what a limit of bytes takes next from a partition that holds ``low`` to ``high``.

    Offsets stand for bytes. A partition that has lost nothing yet, or has fewer than ``least`` records, may be far from its limit.
    """
    return low + round((1 - AGED_SHARE) * (high - low)) if low > 0 and high - low >= least else 0


def _lag(position: int | None, end: int, status: PartitionStatus | None) -> int | None:
    """Return how far the position is behind. A worker that has seen the very end knows what only markers fill."""
    if status is not None and status.lag == 0 and status.end is not None and status.end >= end:
        return 0
    return None if position is None else max(0, end - position)


def _said(status: PartitionStatus | None, ahead_ms: int) -> dict[str, Any]:
    if status is None:
        return {"last_progress_at": None}
    return {
        "last_progress_at": None if status.last_progress_at is None else status.last_progress_at - ahead_ms,
        "held": status.held,
        "waiting": tuple(waiting.model_dump() for waiting in status.waiting),
        "lanes_blocked": status.lanes_blocked,
        "in_doubt": status.in_doubt,
        "stuck": status.stuck,
    }


def _counts(records: Iterable[StatusRecord]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.counts.model_dump())
    return dict(total)
