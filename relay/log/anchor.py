"""Anchors: which record the log had below a position, so that a log that lost its end and grew again is not taken for the one that was read.

Brokers that lose power together, or elect a replica that lacks the end (KIP-320 tells the cases), give offsets to other messages than
a worker has read there. While the record below its position is still the same, nothing was passed over.
"""

from __future__ import annotations

from typing import NamedTuple

from relay.message.identity import content_digest
from relay.message.record import LogMessage, Record


class Anchor(NamedTuple):
    """A record's offset, the 8-byte digest of its key and value, and its time (milliseconds, whoever gave it)."""

    offset: int
    content: bytes
    time_ms: int


def anchor_of(record: Record) -> Anchor:
    """Return the anchor that a record is."""
    return Anchor(record.offset() or 0, content_digest(record.key(), record.value()), record.timestamp()[1])


def epoch_of(record: Record) -> int:
    """Return the epoch of the leader that wrote a record: it grows along the log, with each new leader. -1: not said."""
    epoch = record.leader_epoch()
    return -1 if epoch is None else epoch


class NewEpoch(NamedTuple):
    """What was read is another leader's than ``before``, the record read last; None: the first that is read since the take-over."""

    epoch: int
    before: Anchor | None


class Trail:
    """What one log partition has shown since its take-over, as far as anchors need it."""

    __slots__ = ("_below", "_epoch", "_handed", "_read")

    def __init__(self) -> None:
        self._epoch = -1
        self._read: Anchor | None = None
        self._handed: Anchor | None = None
        self._below: Anchor | None = None

    def read(self, last: Record) -> NewEpoch | None:
        """Take the last record of what was read."""
        before, self._read = self._read, anchor_of(last)
        epoch = epoch_of(last)
        if epoch <= self._epoch:
            return None
        self._epoch = epoch
        return NewEpoch(epoch, before)

    def hand_on(self, message: LogMessage) -> None:
        """The last message of a batch was handed on."""
        if self._handed is None or message.offset > self._handed.offset:
            self._handed = Anchor(message.offset, message.content, message.timestamp_ms)

    def below(self, position: int) -> Anchor | None:
        """Return the highest record that is known below ``position``; positions only grow."""
        for one in (self._read, self._handed):
            if one is not None and one.offset < position and (self._below is None or one.offset > self._below.offset):
                self._below = one
        return self._below
