"""A relay that was off for weeks: what it cannot know any more it does not guess."""

from __future__ import annotations

import pytest

from relay.message.errors import Stopped
from relay.run.starts import StartPolicy
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.test_recovery_again import COUNT, LOG, MONITOR, Process, delivered
from tests.unit.test_starts import Shared


def starts(register: Shared) -> StartPolicy:
    """The log is kept for ever: nothing has left it."""
    return StartPolicy(
        register, route="main", policy="earliest", topics={"log": 1}, topic_ids={"log": b"id"}, watermarks=lambda _: (0, COUNT)
    )


def recover(kafka: MemoryKafka, register: Shared) -> Process:
    process = Process(kafka)
    begin_at = process.delivery.recover([LOG], [process.view], kafka, starts(register).resolve, {"log": b"id"})
    process.deliver(begin_at[LOG])
    return process


def test_a_position_that_expired_after_its_traces_is_lost_and_not_a_first_start() -> None:
    kafka, register = MemoryKafka(), Shared()
    recover(kafka, register)
    # Off for weeks: the group's offsets are gone after one, the monitor's entries after two.
    kafka.group.clear()
    kafka.low[MONITOR] = len(kafka.logs[MONITOR])

    with pytest.raises(Stopped, match="no stored position although the route has run before"):
        recover(kafka, register)

    assert delivered(kafka) == list(range(COUNT))
