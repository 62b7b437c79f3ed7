"""Undecided captures are asked about in the background; the worker's loop only posts questions and takes answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

import structlog

from relay.capture.resolver import Resolution, State
from relay.log.ended import Decision
from relay.log.holds import Hold, Waiting
from relay.log.intake import Intake
from relay.message.envelope import ResourceName
from relay.message.errors import RelayError
from relay.message.record import LogPartition
from relay.world import schedule

log = structlog.get_logger("relay.resolving")
QUESTIONS_MAX: Final = 1000

_WAITING: Final = {
    State.UNDECIDED: Waiting.RESOURCE,
    State.UNREACHABLE: Waiting.UNREACHABLE,
    State.WRONG_RESOURCE: Waiting.STUCK,
}
_DECISION: Final = {State.COMMITTED: Decision.COMMITTED, State.ABORTED: Decision.ABORTED}


_ASK_PUBLISHER: Final = (State.UNREACHABLE, State.WRONG_RESOURCE)
UNNAMED: Final = ResourceName("", "")
"""Stands for the resource of a capture whose messages name none: only a person can decide it."""

Inquire = Callable[[bytes, ResourceName, list[LogPartition], float], None]
"""Given a capture, its resource, the partitions that wait for a marker, and the time: ask its publisher's process."""

AddMarker = Callable[[bytes, ResourceName, bytes | None, list[LogPartition]], None]
"""Given a capture, its resource, the nonce if it is committed, and the partitions that lack a marker: append it there."""


class Asks(Protocol):
    """Finds out how captures ended; may block."""

    def resolve(self, captures: Sequence[tuple[bytes, ResourceName]]) -> dict[bytes, Resolution]:
        """Return what is known of each capture, fencing the ones that nobody decided."""


class Resolving:
    """Carries questions to a resolver's thread and answers back."""

    def __init__(
        self,
        resolver: Asks,
        watermark: Callable[[LogPartition], int],
        inquire: Inquire | None = None,
        *,
        add_marker: AddMarker | None = None,
        hears_persons: bool = False,
        close: Callable[[], object] = bool,
    ) -> None:
        self._resolver = resolver
        self._watermark = watermark
        self._questions: schedule.Queue[list[tuple[bytes, ResourceName]] | None] = schedule.fifo(maxsize=16)
        self._inquire = inquire
        self._add_marker = add_marker
        self._hears_persons = hears_persons
        self._close = close
        self._answers: schedule.Queue[list[tuple[bytes, ResourceName, Resolution]]] = schedule.fifo()
        self._thread: schedule.Thread | None = None
        self._closed = False

    def turn(self, intake: Intake, now: float) -> None:
        """Take answers, give overdue holds the end of their scan, and ask what is due."""
        self._take_answers(intake, now)
        if not intake.lanes_blocked():
            return
        for partition, held in intake.partitions.items():
            if held.wants_watermark(now):
                held.scan_to(self._watermark(partition), now)
        due = intake.due(now)
        if due:
            self._ask(intake, due, now)

    def close(self) -> None:
        """Let the thread end; it holds nothing that matters, and a resource that is silent holds nobody up."""
        self._closed = True
        if self._thread is not None:
            with suppress(schedule.Full):  # it finds that it is closed before its next question
                self._questions.put_nowait(None)
        self._close()

    def _ask(self, intake: Intake, due: list[Hold], now: float) -> None:
        named = []
        for hold in due:
            if hold.resource is None:
                intake.postpone(hold.capture, None, Waiting.STUCK, now)
            if hold.resource is not None or self._hears_persons:
                named.append((hold.capture, hold.resource or UNNAMED))
        if not named:
            return
        if self._thread is None:
            self._thread = schedule.start_thread("relay-resolver", self._work)
        for part in _questions(named):
            try:
                self._questions.put_nowait(part)
            except schedule.Full:
                for capture, resource in part:
                    intake.postpone(capture, _named(resource), Waiting.RESOURCE, now)

    def _take_answers(self, intake: Intake, now: float) -> None:
        while True:
            try:
                answers = self._answers.get_nowait()
            except schedule.Empty:
                return
            for capture, resource, resolution in answers:
                decision = _DECISION.get(resolution.state)
                if decision is None:
                    intake.postpone(capture, _named(resource), _WAITING[resolution.state], now, resolution.detail)
                    if resolution.state in _ASK_PUBLISHER and resource != UNNAMED:
                        self._ask_publisher(intake, capture, resource, now)
                else:
                    log.info("resolved", capture=capture.hex(), decision=decision.value)
                    if resolution.of_row:
                        self._tell_the_log(intake, capture, resource, resolution.nonce)
                    intake.decide(capture, _named(resource), decision)

    def _ask_publisher(self, intake: Intake, capture: bytes, resource: ResourceName, now: float) -> None:
        """Whoever cannot ask the resource asks the publisher's process; its answer comes as a marker."""
        places = [place for place, held in intake.partitions.items() if held.waits_for(capture, resource)]
        if self._inquire is not None and places:
            self._inquire(capture, resource, places, now)

    def _tell_the_log(self, intake: Intake, capture: bytes, resource: ResourceName, nonce: bytes | None) -> None:
        """Whoever cannot ask the resource (another relay, a stream of Spark) would wait for the publisher for ever.

        Not where a marker is known to be: each worker that such a hint has ask would add another.
        """
        places = [place for place, held in intake.partitions.items() if held.lacks_marker(capture, resource)]
        if self._add_marker is not None and places:
            self._add_marker(capture, resource, nonce, places)

    def _work(self) -> None:
        while (asked := self._questions.get()) is not None and not self._closed:
            try:
                answers = self._resolver.resolve(asked)
            except Exception as failure:  # noqa: BLE001 - whatever it is, the thread must answer
                # Retry: nothing is known, so nothing is decided; the holds are asked again with backoff. The words
                # of a strange error are left out: they may quote an address with its password.
                reason = str(failure) if isinstance(failure, RelayError) else type(failure).__name__
                log.warning("not resolved", reason=reason)
                answers = {capture: Resolution(State.UNREACHABLE, detail=reason) for capture, _ in asked}
            self._answers.put([(capture, resource, answers[capture]) for capture, resource in asked])


def _questions(named: Sequence[tuple[bytes, ResourceName]]) -> Iterator[list[tuple[bytes, ResourceName]]]:
    """Yield questions in bounded pieces, a capture once in each: its messages may name several resources."""
    left = dict.fromkeys(named)
    while left:
        part = dict(islice(left, QUESTIONS_MAX))
        yield list(part.items())
        for one in part.items():
            del left[one]


def _named(resource: ResourceName) -> ResourceName | None:
    return None if resource == UNNAMED else resource
