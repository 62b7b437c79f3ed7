"""Numbers of captured messages: the publisher's own count of what its incarnation appended to a log partition.

Only a message that still carries its capture has one: there the capture library gave it, under the append lock. A
plain producer's ``ce_sequence`` is data, and so is the number of a message that left the log it was counted in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from relay.message.envelope import INCARNATION, SEQUENCE, SOURCE
from relay.message.record import LogMessage

_DIGITS_MAX: Final = 18
_NUMBER_MAX: Final = 10**_DIGITS_MAX - 1
_OWN_LEAST: Final = 3
"""The library writes the source second, the incarnation fourth and the number last: read by place, three times as
fast as by name. Whatever has another order is read by name, and the last of a repeated header counts."""
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


def claimed_run(source: bytes, incarnation: bytes, first: int, count: int) -> NumberRun | None:
    """Return the numbers that a marker claims, None where no message could have them: evidence must hold what it closes.

    A range of a longer name is more than a broker takes as one record, a longer number more than Avro does.
    """
    if not 0 < first <= _NUMBER_MAX or not 0 < count <= _NUMBER_MAX - first + 1 or not _are_names(source, incarnation):
        return None
    return NumberRun(source, incarnation, first, first + count - 1)


NumberKey = tuple[str, int, bytes, bytes]
"""Log topic and partition, source, incarnation."""


def number_of(message: LogMessage) -> Number | None:
    """Return the number of a captured message; None for every other message."""
    if message.capture is None:
        return None
    headers = message.headers
    own = len(headers) > _OWN_LEAST and headers[1][0] == SOURCE and headers[3][0] == INCARNATION
    if own and headers[-1][0] == SEQUENCE:
        return _checked(headers[1][1], headers[3][1], headers[-1][1])
    fields = dict(headers)
    return _checked(fields.get(SOURCE), fields.get(INCARNATION), fields.get(SEQUENCE))


def numbers_of(messages: Iterable[LogMessage]) -> dict[NumberKey, list[int]]:
    """Return the numbers of the captured ones among many messages, in their order: ``number_of``, in bulk."""
    groups: dict[NumberKey, list[bytes]] = {}
    for message in messages:
        if message.capture is None:
            continue
        headers = message.headers
        own = len(headers) > _OWN_LEAST and headers[1][0] == SOURCE and headers[3][0] == INCARNATION
        if own and headers[-1][0] == SEQUENCE:
            key = (message.topic, message.partition, headers[1][1], headers[3][1])
            raw = headers[-1][1]
        else:
            number = number_of(message)
            if number is None:
                continue
            key = (message.topic, message.partition, number.source, number.incarnation)
            raw = b"%d" % number.sequence
        group = groups.get(key)
        if group is None:
            groups[key] = [raw]
        else:
            group.append(raw)
    return {key: numbers for key, group in groups.items() if (numbers := _parsed(key, group))}


def _parsed(key: NumberKey, group: list[bytes]) -> list[int]:
    _topic, _partition, source, incarnation = key
    lengths = [len(raw or b"") for raw in group]
    if not min(lengths) or max(lengths) > _DIGITS_MAX or not b"".join(group).isdigit():
        group = [raw for raw in group if _checked(source, incarnation, raw) is not None]
    elif _checked(source, incarnation, group[0]) is None:
        return []
    return list(map(int, group))


def _checked(source: bytes | None, incarnation: bytes | None, raw: bytes | None) -> Number | None:
    if not source or not incarnation or not raw or len(raw) > _DIGITS_MAX or not raw.isdigit():
        return None
    return Number(source, incarnation, int(raw)) if _are_names(source, incarnation) else None


def _are_names(source: bytes, incarnation: bytes) -> bool:
    return 0 < len(source) <= _SOURCE_BYTES_MAX and 0 < len(incarnation) <= _INCARNATION_BYTES_MAX
