"""Markers are written by a thread that nothing ends but its publisher."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.capture.marking import Ended, Marking
from relay.capture.outcomes import Placed
from relay.kafka.appender import Receipt, Record
from relay.message.envelope import ResourceName
from relay.message.errors import Unreachable
from relay.run import schedule

CANARY = "a canary"


class Faulty:
    """An appender that fails once in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.marking: Marking
        self.appended: list[Record] = []
        self.calls = 0

    def append(self, records: Sequence[Record], _receipt: Receipt, _deadline: float) -> None:
        self.calls += 1
        if self.calls == 1:
            self.marking.submit(ended(2))
            raise ZeroDivisionError(CANARY)
        self.appended += records
        self.marking._stop = True


def ended(number: int) -> Ended:
    return Ended(b"%016d" % number, b"nonce" * 3, [Placed("orders", 0, number, 1)], "i")


def test_what_nobody_foresaw_ends_no_marking_and_is_brought_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace())
    appender = Faulty()
    appender.marking = Marking(cast("Any", appender), lambda: cast("Any", None), b"/shop", ResourceName("shop", "u"), 1.0)
    appender.marking.submit(ended(1))

    appender.marking._run()

    assert [record.key for record in appender.appended] == [ended(2).capture]
    assert appender.marking.given_up, "the upkeep brings the first again"
    assert "ZeroDivisionError" in caplog.text
    assert CANARY not in caplog.text


class Slow:
    """Decision rows of a database that has time for so many in one statement."""

    def __init__(self, able: int) -> None:
        self.able = able
        self.marked: list[bytes] = []

    def mark(self, captures: Sequence[bytes]) -> None:
        if len(captures) > self.able:
            raise Unreachable("canceling statement due to statement timeout")
        self.marked += captures

    def close(self) -> None:
        pass


class Acknowledging:
    """An appender whose brokers acknowledge at once."""

    def append(self, records: Sequence[Record], receipt: Receipt, _deadline: float) -> None:
        for _ in records:
            receipt.told(None, None)


def test_captures_that_gathered_while_the_database_was_away_are_noted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "start_thread", lambda *_: SimpleNamespace())
    database = Slow(3_000)
    marking = Marking(cast("Any", Acknowledging()), lambda: cast("Any", database), b"/shop", ResourceName("shop", "u"), 1.0)
    for number in range(20_000):
        marking.submit(ended(number))

    for _ in range(10):
        marking.run_once()
        marking._noted_at -= 1.0

    assert sorted(database.marked) == [ended(number).capture for number in range(20_000)]
    assert marking.backlog == 0
