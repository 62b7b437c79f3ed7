"""What persons want of queues, publishers and subscribers: the last word about each holds, also after a restart.

The words are records of a compacted topic; every worker follows them. Source: document 003, [27] and claim on
"single point control"; [41] to [43] for publishers that are held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from relay.message.schemas import UnknownRecord, codec

KEY_PREFIX: Final = b"desired/"
MOVE_PREFIX: Final = b"queue-move/"
IDENTITY_PREFIX: Final = b"queue-uuid/"
AUDIT_PREFIX: Final = b"queue-audit/"
PREFIXES: Final = (KEY_PREFIX, MOVE_PREFIX, IDENTITY_PREFIX, AUDIT_PREFIX)
AUDITS_MAX: Final = 1000


class Kind(Enum):
    """Whom a wish is about."""

    QUEUE = "queue"
    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"


class Wanted(Enum):
    """RUN; PAUSE: of a queue or subscriber nothing is taken, of a publisher nothing is revealed; DRAIN: routes put nothing new."""

    RUN = "RUN"
    PAUSE = "PAUSE"
    DRAIN = "DRAIN"


class Subject(NamedTuple):
    """A queue (``name`` is empty), or one of its publishers or subscribers."""

    kind: Kind
    queue: str
    name: str = ""

    def key(self) -> bytes:
        """Return the record's key; a publisher's name may hold anything, so it comes last."""
        return KEY_PREFIX + f"{self.kind.value}/{self.queue}/{self.name}".encode()


class Wish(NamedTuple):
    """What is wanted of a subject; ``at`` is wall milliseconds, for people."""

    subject: Subject
    wanted: Wanted
    who: str
    reason: str
    at: int

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value."""
        record = {"wanted": self.wanted.value, "who": self.who, "reason": self.reason, "at": self.at}
        return self.subject.key(), codec("desired").encode(record)


class Step(Enum):
    """Steps of moving a queue: both stores exist; the old one is being retired; the new one is the queue."""

    COPYING = "COPYING"
    RETIRING = "RETIRING"
    MOVED = "MOVED"


class Move(NamedTuple):
    """How far a queue's move has come; stores as the configuration writes them."""

    queue: str
    uuid: str
    source: str
    target: str
    step: Step
    who: str
    at: int

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value."""
        record = {**self._asdict(), "step": self.step.value}
        del record["queue"]
        return MOVE_PREFIX + self.queue.encode(), codec("queue_move").encode(record)


class Audit(NamedTuple):
    """What a person did to messages; ``id`` makes the record's key its own, so that compaction keeps it."""

    id: str
    queue: str
    action: str
    changed: int
    subject: str
    who: str
    reason: str
    at: int

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value."""
        record = self._asdict()
        return AUDIT_PREFIX + record.pop("id").encode(), codec("queue_audit").encode(record)


@dataclass(slots=True)
class Desired:
    """All that is wanted, as read so far. Pure: records in, answers out."""

    wishes: dict[Subject, Wish] = field(default_factory=dict)
    moves: dict[str, Move] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)
    audits: deque[Audit] = field(default_factory=lambda: deque(maxlen=AUDITS_MAX))

    def add(self, key: bytes, value: bytes | None) -> bool:
        """Take a record in, in the topic's order; True if something may have changed. Others' records are passed over."""
        if not key.startswith(PREFIXES):
            return False
        try:
            self._add(key, value)
        except (UnknownRecord, UnicodeDecodeError, ValueError):
            return False  # a newer version's, or a stranger's: what was wanted before still holds
        return True

    def may_take(self, queue: str, subscriber: str) -> bool:
        """May this subscriber take messages of this queue?"""
        if queue in self.moves and self.moves[queue].step is Step.RETIRING:
            return False
        subjects = (Subject(Kind.QUEUE, queue), Subject(Kind.SUBSCRIBER, queue, subscriber))
        return all(self.wanted(subject) is not Wanted.PAUSE for subject in subjects)

    def may_put(self, queue: str) -> bool:
        """May routes put messages into this queue? Children are not asked: refused, their parents would run again and again."""
        if queue in self.moves and self.moves[queue].step is Step.RETIRING:
            return False
        return self.wanted(Subject(Kind.QUEUE, queue)) is not Wanted.DRAIN

    def held_publishers(self, queue: str) -> frozenset[str]:
        """Return the publishers whose messages are put and not revealed."""
        return frozenset(wish.subject.name for wish in self.of(Kind.PUBLISHER, queue) if wish.wanted is Wanted.PAUSE)

    def resumed_publishers(self, queue: str) -> frozenset[str]:
        """Return the publishers of which a person has said that they go on."""
        return frozenset(wish.subject.name for wish in self.resumptions(queue))

    def resumptions(self, queue: str) -> frozenset[Wish]:
        """Return by whom and when each of them was told to go on: who goes on a second time does so by another wish."""
        return frozenset(wish for wish in self.of(Kind.PUBLISHER, queue) if wish.wanted is Wanted.RUN)

    def wanted(self, subject: Subject) -> Wanted:
        """Return what is wanted of a subject; RUN where nobody said anything."""
        wish = self.wishes.get(subject)
        return Wanted.RUN if wish is None else wish.wanted

    def of(self, kind: Kind, queue: str) -> Iterator[Wish]:
        """Yield what was said about subjects of one kind in a queue."""
        return (wish for wish in self.wishes.values() if (wish.subject.kind, wish.subject.queue) == (kind, queue))

    def store_of(self, queue: str, configured: str) -> str:
        """Return the store that holds the queue now: the configured one, unless it has moved away from there."""
        move = self.moves.get(queue)
        moved = move is not None and move.step is Step.MOVED and move.source == configured
        return move.target if move is not None and moved else configured

    def _add(self, key: bytes, value: bytes | None) -> None:
        if key.startswith(KEY_PREFIX):
            kind, queue, name = key.removeprefix(KEY_PREFIX).decode().split("/", 2)
            self._wish(Subject(Kind(kind), queue, name), value)
        elif key.startswith(MOVE_PREFIX):
            self._move(key.removeprefix(MOVE_PREFIX).decode(), value)
        elif key.startswith(IDENTITY_PREFIX):
            if value is not None:
                self.uuids[key.removeprefix(IDENTITY_PREFIX).decode()] = value.decode()
        elif value is not None:
            found = codec("queue_audit").decode(value)
            self.audits.append(Audit(id=key.removeprefix(AUDIT_PREFIX).decode(), **found))

    def _wish(self, subject: Subject, value: bytes | None) -> None:
        if value is None:
            self.wishes.pop(subject, None)
            return
        found = codec("desired").decode(value)
        self.wishes[subject] = Wish(subject, Wanted(found["wanted"]), found["who"], found["reason"], found["at"])

    def _move(self, queue: str, value: bytes | None) -> None:
        if value is None:
            self.moves.pop(queue, None)
            return
        found = codec("queue_move").decode(value)
        self.moves[queue] = Move(queue, **{**found, "step": Step(found["step"])})


def encode_uuid(queue: str, uuid: str) -> tuple[bytes, bytes]:
    """Return the record that binds a queue's name to the store that was made for it."""
    return IDENTITY_PREFIX + queue.encode(), uuid.encode()
