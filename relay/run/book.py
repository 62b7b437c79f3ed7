"""The book of resolutions in the control topic: written by persons, obeyed by owners, the first about a thing holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from relay.message.record import LogPartition
from relay.monitor.resolution import (
    ANSWER_PREFIX,
    KEY_PREFIX,
    Answer,
    Kind,
    Resolution,
    Resolutions,
    Span,
    encode,
    encode_answer,
    uncovered,
)
from relay.run.register import Register
from relay.world import clock

log = structlog.get_logger("relay.book")
FRESH_S: Final = 5.0
"""Who asks again and again is answered from what was read so long ago at most."""


class ControlBook:
    """Reads and writes resolutions. For one thread; the register is opened when it is first needed."""

    def __init__(self, open_register: Callable[[], Register], worker: str) -> None:
        self._open = open_register
        self._register: Register | None = None
        self._worker = worker
        self._read: tuple[float, Resolutions] | None = None
        self.lost = 0

    def read(self) -> Resolutions:
        """Read all that was decided up to now. Raises Unreachable, Stuck."""
        found = Resolutions()
        for key, value in self._opened().under((KEY_PREFIX, ANSWER_PREFIX)):
            found.add(key, value)
        self._read = (clock.monotonic(), found)
        return found

    def recent(self) -> Resolutions:
        """Return what was decided up to some seconds ago."""
        if self._read is None or clock.monotonic() - self._read[0] > FRESH_S:
            return self.read()
        return self._read[1]

    def known_obeyed(self) -> Resolutions:
        """Return what was obeyed as of the last reading, however long ago: that is final."""
        if self._read is None:
            return Resolutions()
        _, told = self._read
        return Resolutions([one for one in told.holding if told.is_obeyed(one)], answers=told.answers)

    def has_changed(self) -> bool:
        """Has anybody decided anything since the last reading?"""
        before = len(self._read[1].holding) if self._read is not None else 0
        return len(self.read().holding) != before

    def write(self, resolution: Resolution) -> Resolution:
        """Append a resolution and return the one that holds: an earlier one about the same thing, if there is."""
        self._opened().put(*encode(resolution), wait=True)
        holds = self.read().about(resolution.subject)
        return resolution if holds is None else holds

    def obey(self, resolution: Resolution, done: str) -> None:
        """Write down that it is obeyed, before what follows from it; only the first answer is kept by readers.

        Safe from an owner that has lost its partition meanwhile: that no evidence can decide is true for ever.
        """
        if self._read is not None and self._read[1].is_obeyed(resolution):
            return
        answer = Answer(resolution.id, self._worker, clock.wall_ms(), done)
        self._opened().put(*encode_answer(answer), wait=True)
        if self._read is not None:
            self._read[1].answers.setdefault(resolution.id, []).append(answer)
        log.warning("obeyed", subject=resolution.subject.text, told=resolution.told.name, who=resolution.who)

    def pass_lost(self, route: str, place: LogPartition, first: int, following: int, *, count: int) -> bool:
        """May these offsets, which have left the log, be passed? If so, obey, and count what is lost."""
        if self.undecided(route, place, first, following) is not None:
            return False
        for one in self.recent().of_route(Kind.LOST, route, [place]):
            if one.subject.first < following and first < one.subject.next:
                self.obey(one, f"passed offsets {first} to {following - 1} of {place.topic}[{place.partition}] as lost")
        self.lost += count
        return True

    def undecided(self, route: str, place: LogPartition, first: int, following: int) -> Span | None:
        """Of offsets that have left the log, return the first part that nobody has decided about."""
        told = self.recent().of_route(Kind.LOST, route, [place])
        spans = [Span(one.subject.first, one.subject.next) for one in told]
        return next(uncovered(first, following, spans), None)

    def _opened(self) -> Register:
        if self._register is None:
            self._register = self._open()
        return self._register
