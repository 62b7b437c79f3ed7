"""Holds: a message of an undecided capture waits, and only its lane waits with it.

One ``PartitionHolds`` keeps what one log partition has shown and not yet handed on. It does no I/O and reads no
clock: the worker tells it messages, markers, resolutions and the time, and asks it what is ready and what to
find out. Past the byte budget a held message is kept as an offset range and read again after the outcome, so the
scan for markers never pauses (US 8,200,836; design of the capture's readers). Past the bound on those ranges nothing
more is taken in: what follows is only looked through for markers, and read again when half of the ranges are gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from relay.log.ended import OUTCOMES_REMEMBERED, Decision, EndedCaptures
from relay.message.envelope import ResourceName
from relay.message.numbers import Number, NumberRun, number_of
from relay.message.record import LogMessage, LogPartition, bytes_of, lane_name

RANGES_KEPT: Final = 100_000
"""Ranges without payload over all partitions of a worker, about a kilobyte each where each is a lane of its own."""
RANGES_LEAST: Final = 1000
CLAIMS_MAX: Final = 10_000
"""Claims of markers that wait for a batch: any number of markers may come before one, and what is forgotten only costs recognition."""
NOTHING_WAITS: Final = 1 << 63
"""Above every offset."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
RETRY_STUCK_MAX_S: Final = 10.0
"""For what only a person can decide: whoever has just decided waits for it to be obeyed."""


class Waiting(Enum):
    """Why a capture is still undecided, as shown to people."""

    MARKER = "waiting for the outcome marker"
    RESOURCE = "the resource has not decided"
    UNREACHABLE = "the resource does not answer"
    STUCK = "the resource is unknown or is another database under this name"


@dataclass(slots=True)
class Hold:
    """One undecided capture in one partition; times are monotonic seconds. ``detail`` is what its resource said last, for people."""

    capture: bytes
    resource: ResourceName | None
    first_offset: int
    first_seen: float
    waiting: Waiting = Waiting.MARKER
    detail: str = ""
    scan_to: int | None = None
    ask_at: float = 0.0
    retry_s: float = RETRY_FIRST_S
    hinted_abort: bool = False
    lanes: set[bytes] = field(default_factory=set)
    claims: Sequence[NumberRun] = ()


@dataclass(slots=True)
class Spilled:
    """Held messages whose payload was let go: lane-mates of one capture within [first, last].

    ``in_part`` is True once some of them were passed as lost: how many is known when the rest was read.
    """

    capture: bytes | None
    first: int
    last: int
    count: int
    in_part: bool = False


@dataclass(slots=True)
class Aborted:
    """Numbers that ended without a message: those of dropped messages with their offsets, and those that the aborted
    marker of a capture names, of which perhaps nothing ever arrived."""

    numbers: list[tuple[Number, int]] = field(default_factory=list)
    claims: list[NumberRun] = field(default_factory=list)


class HoldBudget:
    """Bytes of held payload that a worker may keep in memory, over all its partitions."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def admit(self, size: int) -> bool:
        """Account for ``size`` bytes if they fit."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True


class PartitionHolds:
    """What one log partition has shown and not yet handed on, in lanes."""

    def __init__(
        self,
        partition: LogPartition,
        start: int,
        budget: HoldBudget,
        marker_wait_s: float,
        outcomes_max: int = OUTCOMES_REMEMBERED,
        ranges_max: int = RANGES_KEPT,
    ) -> None:
        self.partition = partition
        self.read_to = start
        self.ready: list[LogMessage] = []
        self.aborted = 0
        self.alarms = 0
        self.numbered = False
        self._ended = Aborted()
        self._lost_to: dict[bytes, int] = {}
        self._budget = budget
        self._marker_wait_s = marker_wait_s
        self._ranges_max = ranges_max
        self._ranges = 0
        self.untaken_from: int | None = None
        """From here on nothing was taken in."""
        self._lanes: dict[bytes, deque[LogMessage | Spilled]] = {}
        self._kept: dict[int, int] = {}
        """Bytes that are kept here, by offset: adding the headers up once more would be a tenth of holding a message."""
        self._holds: dict[bytes, Hold] = {}
        self._ended_captures = EndedCaptures(outcomes_max)
        self._reload: dict[bytes, None] = {}
        self._weighed = self._weight = 0
        self.held = 0
        """How many messages wait, the payload kept or not."""
        self._lowest: int | None = NOTHING_WAITS
        """The lowest offset that a lane waits at, None until it is asked for: idle workers ask often, and lanes may be many."""

    def take(self, message: LogMessage, resource: ResourceName | None, now: float) -> None:
        """Sort a message in: ready, dropped, or held behind its lane's undecided capture."""
        self.read_to = message.offset + 1
        if self.untaken_from is not None:
            return
        capture = message.capture
        lane = lane_name(message.lane)
        blocked = lane in self._lanes
        if capture is None:
            if not blocked:
                self.ready.append(message)
                return
        else:
            self.numbered = True
            outcome = self._ended_captures.of(capture)
            if outcome is Decision.ABORTED:
                self._drop(message)
                return
            if outcome is Decision.COMMITTED and not blocked:
                self.ready.append(message)
                return
            if outcome is None:
                self._hold(capture, resource, message.offset, now).lanes.add(lane)
        self._enqueue(message, lane)

    def mark(
        self, capture: bytes, decision: Decision, *, trusted: bool, now: float, claims: Sequence[NumberRun] = ()
    ) -> None:
        """Take an outcome marker: the first valid one of a capture wins, a contradicting one is an alarm.

        ``trusted`` is True for a committed marker whose nonce proves it and for an aborted one of a resource this
        relay cannot ask; any other aborted marker is only a reason to ask at once. ``claims`` are the numbers that an
        aborted one names: they wait with the messages of its capture, if it has any here.
        """
        known = self._ended_captures.of(capture)
        if known is not None:
            self.alarms += known is not decision
            if known is Decision.ABORTED:
                self._claim(claims)
            return
        hold = self._holds.get(capture)
        if hold is not None:
            hold.claims = claims
        elif self.untaken_from is None:  # else its messages may be among those, and the marker comes again with them
            self._claim(claims)
        if trusted:
            self.decide(capture, decision)
        elif hold is not None:
            hold.hinted_abort, hold.ask_at = True, now

    def resource_of(self, capture: bytes) -> ResourceName | None:
        """The resource that the messages of an undecided capture name; a marker's own word does not count."""
        hold = self._holds.get(capture)
        return hold.resource if hold is not None else None

    def waits_for(self, capture: bytes, resource: ResourceName | None) -> bool:
        """Do messages of an undecided capture wait here that name this resource?"""
        hold = self._holds.get(capture)
        return hold is not None and hold.resource == resource

    def lacks_marker(self, capture: bytes, resource: ResourceName | None) -> bool:
        """Does it wait for this resource without having seen a marker, not even one that is only a hint?"""
        hold = self._holds.get(capture)
        return hold is not None and hold.resource == resource and not hold.hinted_abort

    def forged(self) -> None:
        """Count a marker whose claim is false (a committed one with a wrong nonce)."""
        self.alarms += 1

    def decide(self, capture: bytes, decision: Decision) -> None:
        """Write down how a capture ended and let its lanes go on."""
        self._ended_captures.decide(capture, decision)
        hold = self._holds.pop(capture, None)
        if hold is not None and decision is Decision.ABORTED:
            self._claim(hold.claims)
        for lane in hold.lanes if hold else ():
            self._drain(lane)

    def postpone(self, capture: bytes, waiting: Waiting, now: float, detail: str = "") -> None:
        """The resource gave no decision: ask again later, with backoff; show why."""
        hold = self._holds.get(capture)
        if hold is not None:
            hold.waiting, hold.detail = waiting, detail
            hold.ask_at = now + hold.retry_s
            slow = waiting is not Waiting.RESOURCE
            most = RETRY_STUCK_MAX_S if waiting is Waiting.STUCK else RETRY_MAX_S
            hold.retry_s = min(hold.retry_s * 2, most) if slow else RETRY_FIRST_S

    def wants_watermark(self, now: float) -> bool:
        """Is a hold overdue whose scan has no end yet? The high watermark taken now is that end."""
        for hold in self._holds.values():
            if now - hold.first_seen < self._marker_wait_s:
                return False
            if hold.scan_to is None:
                return True
        return False

    def scan_to(self, high_watermark: int, now: float) -> None:
        """Give the overdue holds the end of their scan: only past it may their resource be asked."""
        for hold in self._holds.values():
            if hold.scan_to is None and now - hold.first_seen >= self._marker_wait_s:
                hold.scan_to = high_watermark

    def due(self, now: float) -> list[Hold]:
        """Return the holds whose resource must be asked now and put off the next question."""
        found = []
        for hold in self._holds.values():
            scanned = hold.scan_to is not None and self.read_to >= hold.scan_to
            if (scanned or hold.hinted_abort) and hold.ask_at <= now:
                hold.ask_at = now + RETRY_MAX_S
                found.append(hold)
        return found

    def take_ready(self, limit: int) -> list[LogMessage]:
        """Hand on up to ``limit`` messages in the order in which each lane may deliver them."""
        self._weighed = self._weight = 0
        if len(self.ready) <= limit:
            taken, self.ready = self.ready, []
        else:
            taken, self.ready = self.ready[:limit], self.ready[limit:]
        return taken

    def ready_bytes(self) -> int:
        """Bytes of the messages that could be handed on now. Asked often: each message is looked at once."""
        if self._weighed < len(self.ready):
            self._weight += bytes_of(self.ready[self._weighed :])
            self._weighed = len(self.ready)
        return self._weight

    def take_aborted(self) -> Aborted:
        """Hand on the numbers that ended without a message since the last call."""
        taken, self._ended = self._ended, Aborted()
        return taken

    def position(self) -> int:
        """The offset below which everything was handed on, dropped, or was never a message."""
        if self._lowest is None:
            self._lowest = min(map(_first_of, self._lanes.values()), default=NOTHING_WAITS)
        lowest = min(self._lowest, self._taken_to)
        for message in self.ready:
            lowest = min(lowest, message.offset)
        return lowest

    def still_to_hand_on(self, below: int) -> int:
        """How many offsets below this one were not read yet, or may be handed on now: what waits in a lane counts as held."""
        return max(0, below - self._taken_to) + sum(message.offset < below for message in self.ready)

    @property
    def _taken_to(self) -> int:
        """Up to where everything was taken in."""
        return self.read_to if self.untaken_from is None else self.untaken_from

    def go_back(self) -> bool:
        """When half of the ranges are gone, return to what was not taken in: True if ``read_to`` is to be read from now."""
        if self.untaken_from is None or 2 * self._ranges > self._ranges_max:
            return False
        self.read_to, self.untaken_from = self.untaken_from, None
        return True

    def reloads(self) -> list[tuple[bytes, Spilled]]:
        """Return the lanes whose next, decided messages must be read from the log again."""
        found = []
        for lane in self._reload:
            head = self._lanes[lane][0]
            assert isinstance(head, Spilled)
            found.append((lane, head))
        return found

    def reload_of(self, lane: bytes) -> Spilled | None:
        """Return what ``lane`` waits to have read again, if it is that what it waits for."""
        head = self._lanes[lane][0] if lane in self._reload else None
        return head if isinstance(head, Spilled) else None

    def lose(self, lane: bytes, low: int) -> None:
        """The log now begins at ``low``, above where ``lane`` goes on: the lane stops there, and shows it."""
        head = self._lanes[lane][0]
        assert isinstance(head, Spilled)
        self._lost_to[lane] = min(low, head.last + 1)
        del self._reload[lane]

    def lost(self) -> tuple[int, int] | None:
        """Return the offsets, first and next, that lanes stop at because their payload has left the log."""
        firsts = [head.first for lane in self._lost_to if isinstance(head := self._lanes[lane][0], Spilled)]
        return (min(firsts), max(self._lost_to.values())) if firsts else None

    def pass_lost(self) -> int:
        """Go on behind the offsets that are lost; return how many messages surely were among them."""
        gone = 0
        for lane, following in list(self._lost_to.items()):
            head = self._lanes[lane][0]
            assert isinstance(head, Spilled)
            del self._lost_to[lane]
            if following > head.last:
                gone += head.count
                self._pop(self._lanes[lane])
                self._drain(lane)
            else:
                head.first = following
                head.in_part = True
                self._lowest = None
                self._reload[lane] = None
        return gone

    def reloaded(self, lane: bytes, messages: list[LogMessage], read_to: int) -> int:
        """Take what was read again for the head of ``lane``: its messages below ``read_to``, in log order.

        Raises LookupError if the range is over and fewer messages were found than were seen: the payload has left
        the log. Returns how many of a range passed in part are lost.
        """
        queue = self._lanes[lane]
        head = queue[0]
        assert isinstance(head, Spilled)
        # What is of another capture was dropped: else it would have begun a range of its own.
        found = [m for m in messages if lane_name(m.lane) == lane and m.capture == head.capture]
        self.ready.extend(found)
        head.count -= len(found)
        head.first = read_to
        self.held -= len(found)
        self._lowest = None
        if read_to <= head.last:
            return 0
        if head.count > 0 and not head.in_part:
            raise LookupError(f"{head.count} held messages of {self.partition} below offset {read_to} left the log")
        self._pop(queue)
        del self._reload[lane]
        self._drain(lane)
        return head.count

    @property
    def is_blocked(self) -> bool:
        """May a message have to wait, or be left for later, although its own capture is decided?"""
        return bool(self._lanes) or self.untaken_from is not None

    @property
    def lanes_blocked(self) -> int:
        """How many lanes wait."""
        return len(self._lanes)

    def holds(self) -> list[Hold]:
        """Return the undecided captures, oldest first."""
        return list(self._holds.values())

    def release_budget(self) -> None:
        """Give the kept bytes back: the partition is no longer owned."""
        self._budget.used -= sum(self._kept.values())
        self._kept.clear()

    def _hold(self, capture: bytes, resource: ResourceName | None, offset: int, now: float) -> Hold:
        hold = self._holds.get(capture)
        if hold is None:
            hold = self._holds[capture] = Hold(capture, resource, offset, now)
        return hold

    def _enqueue(self, message: LogMessage, lane: bytes) -> None:
        queue = self._lanes.get(lane)
        last = queue[-1] if queue else None
        size = message.size
        item: LogMessage | Spilled = message
        if self._budget.admit(size):
            self._kept[message.offset] = size
        elif isinstance(last, Spilled) and last.capture == message.capture:
            last.last, last.count = message.offset, last.count + 1
            self.held += 1
            return
        elif self._ranges >= self._ranges_max:
            self.untaken_from = message.offset
            return
        else:
            self._ranges += 1
            item = Spilled(message.capture, message.offset, message.offset, 1)
        self.held += 1
        if queue is None:
            self._lanes[lane] = deque((item,))
            if self._lowest is not None:
                self._lowest = min(self._lowest, message.offset)
        else:
            queue.append(item)
        if message.capture is not None:
            self._ended_captures.wait(message.capture)

    def _pop(self, queue: deque[LogMessage | Spilled]) -> None:
        """Take the head of a lane out."""
        head = queue.popleft()
        self._lowest = None
        self._ranges -= isinstance(head, Spilled)
        self.held -= head.count if isinstance(head, Spilled) else 1
        if head.capture is not None:
            self._ended_captures.hand_on(head.capture)

    def _drain(self, lane: bytes) -> None:
        queue = self._lanes.get(lane)
        while queue:
            head = queue[0]
            outcome = Decision.COMMITTED if head.capture is None else self._ended_captures.of(head.capture)
            if outcome is None:
                return  # its capture's hold names this lane since the message was taken
            if outcome is Decision.ABORTED:
                if isinstance(head, Spilled):
                    self.aborted += head.count
                else:
                    self._drop(head)
            elif isinstance(head, Spilled):
                self._reload[lane] = None
                return
            else:
                self.ready.append(head)
            if isinstance(head, LogMessage):
                self._budget.used -= self._kept.pop(head.offset)
            self._pop(queue)
        self._lanes.pop(lane, None)

    def _drop(self, message: LogMessage) -> None:
        self.aborted += 1
        number = number_of(message)
        if number is not None:
            self._ended.numbers.append((number, message.offset))

    def _claim(self, claims: Sequence[NumberRun]) -> None:
        if claims:
            self.numbered = True
            self._ended.claims += claims[: CLAIMS_MAX - len(self._ended.claims)]


def _first_of(lane: deque[LogMessage | Spilled]) -> int:
    head = lane[0]
    return head.first if isinstance(head, Spilled) else head.offset
