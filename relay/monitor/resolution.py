"""What a person decided about something in doubt: an audit record, of which the first about a thing holds.

A resolution never overrides evidence. It is a word to the owner, who asks for it only where no evidence can decide,
and notes that it obeyed: from then on the resolution stands like any other decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from relay.message.errors import ConfigError
from relay.message.record import LogPartition
from relay.message.schemas import UnknownRecord, codec

KEY_PREFIX: Final = b"resolution/"
ANSWER_PREFIX: Final = b"obeyed/"
_PLACE: Final = re.compile(r"(?P<route>[^/]+)/(?P<topic>[A-Za-z0-9._-]{1,249})/(?P<partition>\d{1,9})/(?P<first>\d{1,18})(?:-(?P<last>\d{1,18}))?")
_CAPTURE: Final = re.compile(r"[0-9a-f]{32}")


class Kind(Enum):
    """What may be in doubt."""

    CAPTURE = "capture"
    LOST = "lost"
    DELIVERY = "delivery"


class Told(Enum):
    """What a person decided."""

    NOTHING = "nobody has decided"
    COMMIT = "it happened"
    ABORT = "it did not happen"


class Subject(NamedTuple):
    """A thing in doubt: a capture (16 bytes), or offsets from ``first`` up to but not including ``next``."""

    kind: Kind
    capture: bytes = b""
    route: str = ""
    place: LogPartition = LogPartition("", 0)
    first: int = 0
    next: int = 0

    @property
    def text(self) -> str:
        """The name under which people speak of it; the last offset is included there."""
        if self.kind is Kind.CAPTURE:
            return f"capture:{self.capture.hex()}"
        offsets = str(self.first) if self.next == self.first + 1 else f"{self.first}-{self.next - 1}"
        return f"{self.kind.value}:{self.route}/{self.place.topic}/{self.place.partition}/{offsets}"

    def overlaps(self, other: Subject) -> bool:
        """Are both about the same thing, wholly or in part?"""
        if self.kind is not other.kind:
            return False
        if self.kind is Kind.CAPTURE:
            return self.capture == other.capture
        same = (self.route, self.place) == (other.route, other.place)
        return same and self.first < other.next and other.first < self.next


def of_capture(capture: bytes) -> Subject:
    """Name a capture."""
    return Subject(Kind.CAPTURE, capture)


def of_offsets(kind: Kind, route: str, place: LogPartition, first: int, following: int) -> Subject:
    """Name offsets of a log partition as one route sees them, up to but not including ``following``."""
    return Subject(kind, b"", route, place, first, following)


def parse(text: str) -> Subject:
    """Read a name as people write it; ConfigError says what one looks like."""
    kind, _, rest = text.partition(":")
    if kind == Kind.CAPTURE.value and _CAPTURE.fullmatch(rest):
        return of_capture(bytes.fromhex(rest))
    found = _PLACE.fullmatch(rest)
    if found is not None and kind in (Kind.LOST.value, Kind.DELIVERY.value):
        first = int(found["first"])
        following = int(found["last"] or first) + 1
        if following > first:
            place = LogPartition(found["topic"], int(found["partition"]))
            return of_offsets(Kind(kind), found["route"], place, first, following)
    raise ConfigError(
        f"{text!r} names nothing that can be in doubt; copy a name from `relay indoubt list`, such as "
        "capture:ID, lost:ROUTE/TOPIC/PARTITION/FIRST-LAST or delivery:ROUTE/TOPIC/PARTITION/OFFSET"
    )


@dataclass(frozen=True, slots=True)
class Resolution:
    """The audit record: who decided what, when (wall milliseconds), why, and what the evidence said then."""

    id: bytes
    subject: Subject
    told: Told
    who: str
    reason: str
    at: int
    seen: str

    @property
    def reference(self) -> str:
        """How entries and people refer to it."""
        return f"resolution {self.id.hex()}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An owner has obeyed; the first answer made the resolution final."""

    id: bytes
    worker: str
    at: int
    done: str


def encode(resolution: Resolution) -> tuple[bytes, bytes]:
    """Return key and value of the audit record. Every one has a key of its own: compaction keeps them all."""
    record = {
        "id": resolution.id,
        "subject": resolution.subject.text,
        "decision": resolution.told.name,
        "who": resolution.who,
        "reason": resolution.reason,
        "at": resolution.at,
        "seen": resolution.seen,
    }
    return KEY_PREFIX + resolution.id.hex().encode(), codec("resolution").encode(record)


def encode_answer(answer: Answer) -> tuple[bytes, bytes]:
    """Return key and value of an answer."""
    record = {"id": answer.id, "worker": answer.worker, "at": answer.at, "done": answer.done}
    key = ANSWER_PREFIX + answer.id.hex().encode() + b"/" + answer.worker.encode()
    return key, codec("resolution_answer").encode(record)


@dataclass(slots=True)
class Resolutions:
    """The records of the control topic, folded in their order: who came first about a thing, decided."""

    holding: list[Resolution] = field(default_factory=list)
    late: list[tuple[Resolution, Resolution]] = field(default_factory=list)
    answers: dict[bytes, list[Answer]] = field(default_factory=dict)

    def add(self, key: bytes, value: bytes | None) -> None:
        """Take the next record; what is none, or does not lie under its own key, is passed over."""
        if value is None:
            return
        try:
            if key.startswith(KEY_PREFIX):
                self._resolved(key, _read(codec("resolution").decode(value)))
            elif key.startswith(ANSWER_PREFIX):
                answer = Answer(**codec("resolution_answer").decode(value))
                self.answers.setdefault(answer.id, []).append(answer)
        except (UnknownRecord, ConfigError):
            return

    def about(self, subject: Subject) -> Resolution | None:
        """Return the first resolution that is about this thing, or about a part of it."""
        return next((one for one in self.holding if one.subject.overlaps(subject)), None)

    def capture(self, capture: bytes) -> Resolution | None:
        """Return what was decided about a capture."""
        return self.about(of_capture(capture))

    def of_route(self, kind: Kind, route: str, places: Iterable[LogPartition]) -> list[Resolution]:
        """Return what was decided about offsets of these partitions, as this route sees them."""
        wanted = set(places)
        return [
            one for one in self.holding
            if one.subject.kind is kind and one.subject.route == route and one.subject.place in wanted
        ]  # fmt: skip

    def is_obeyed(self, resolution: Resolution) -> bool:
        """Has an owner obeyed it?"""
        return resolution.id in self.answers

    def _resolved(self, key: bytes, resolution: Resolution) -> None:
        if key != KEY_PREFIX + resolution.id.hex().encode():
            return
        earlier = self.about(resolution.subject)
        if earlier is None:
            self.holding.append(resolution)
        elif earlier.id != resolution.id:
            self.late.append((resolution, earlier))


class Span(NamedTuple):
    """Offsets from ``first`` up to but not including ``next``."""

    first: int
    next: int


def uncovered(first: int, following: int, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the parts of [first, following) that no span covers, in order."""
    at = first
    for span in sorted(spans):
        if span.next <= at or span.first >= following:
            continue
        if span.first > at:
            yield Span(at, span.first)
        at = span.next
    if at < following:
        yield Span(at, following)


def _read(record: Mapping[str, Any]) -> Resolution:
    return Resolution(
        record["id"],
        parse(record["subject"]),
        Told[record["decision"]],
        record["who"],
        record["reason"],
        record["at"],
        record["seen"],
    )
