"""A dead letter is written again with the message that is still in the log, and never with another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from relay.delivery.inbox_messages import read_again
from relay.message.identity import content_digest
from relay.message.record import LogPartition
from relay.monitor.entries import DEAD
from relay.transfer.cursor import InboxRow

PLACE = LogPartition("log", 0)


class Record:
    """What lies at a row's place now."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"what was refused"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("ce_id", b"7")]

    def timestamp(self) -> tuple[int, int]:
        return (1, 5)

    def leader_epoch(self) -> int:
        return 0


class Log:
    """A log of which offsets 3 to 9 are left."""

    reads = 0

    def watermarks(self, _place: LogPartition) -> tuple[int, int]:
        return (3, 10)

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Any]]:
        self.reads += 1
        yield [Record(offset) for offset in range(*ranges[PLACE])]


def row(offset: int, content: bytes) -> InboxRow:
    return InboxRow(b"d" * 16, content, PLACE, offset, DEAD, 1)


def test_the_message_that_was_refused_isread_again() -> None:
    (message,) = read_again(Log(), [row(4, content_digest(b"k", b"what was refused"))])

    assert (message.value, message.headers, message.offset) == (b"what was refused", [("ce_id", b"7")], 4)


@pytest.mark.parametrize(
    ("offset", "content"),
    [(2, content_digest(b"k", b"what was refused")), (4, content_digest(b"k", b"the first topic's"))],
    ids=["it has left the log", "another topic has the log's name"],
)
def test_what_lies_there_no_more_is_not_taken_for_something_else(offset: int, content: bytes) -> None:
    assert list(read_again(Log(), [row(offset, content)])) == []


def test_many_are_read_at_once() -> None:
    """A read of its own for each took 18 ms: some seconds of bad messages made a recovery longer than its assignment."""
    log = Log()
    content = content_digest(b"k", b"what was refused")

    found = read_again(log, [row(offset, content) for offset in (2, 4, 6, 7)])

    assert [message.offset for message in found] == [4, 6, 7]
    assert log.reads == 1
