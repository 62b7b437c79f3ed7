"""Numbers of captured messages: the publisher's own count of what its incarnation appended to a log partition.

Only a message that still carries its capture has one: there the capture library gave it, under the append lock. A
plain producer's ``ce_sequence`` is data, and so is the number of a message that left the log it was counted in.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from relay.message.envelope import INCARNATION, SEQUENCE, SOURCE
from relay.message.record import LogMessage

_DIGITS_MAX: Final = 18
_SOURCE_BYTES_MAX: Final = 1024
_INCARNATION_BYTES_MAX: Final = 128
"""The library writes 32; what is longer is a stranger's, and ranges are kept in memory."""


class Number(NamedTuple):
    """The ``sequence``-th message, from 1, that this incarnation of the source appended to one log partition."""

    source: bytes
    incarnation: bytes
    sequence: int


class NumberRun(NamedTuple):
    """Consecutive numbers of one incarnation in one log partition, both ends included."""

    source: bytes
    incarnation: bytes
    first: int
    last: int


def number_of(message: LogMessage) -> Number | None:
    """Return the number of a captured message; None for every other message."""
    if message.capture is None:
        return None
    fields = dict(message.headers)
    source, incarnation, raw = fields.get(SOURCE), fields.get(INCARNATION), fields.get(SEQUENCE)
    if not source or not incarnation or not raw or len(raw) > _DIGITS_MAX or not raw.isdigit():
        return None
    if len(source) > _SOURCE_BYTES_MAX or len(incarnation) > _INCARNATION_BYTES_MAX:
        return None
    return Number(source, incarnation, int(raw))
