"""A record that the broker refuses becomes a dead letter, and nothing of it stays in the worker's memory.

What is too much for one transaction goes in smaller ones: tried as it is, it would fail for ever.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from relay.delivery.batch import Batch
from relay.delivery.deadletter import PREFIX
from relay.message.errors import InDoubt, RecordRefused, Stopped
from relay.message.record import LogPartition
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.test_recovery_again import DEAD, LOG, OUT, Process, message


def no_output(_: str, partition: LogPartition, _key: bytes | None) -> None:
    if partition == OUT:
        raise RecordRefused("it is too large")


def test_a_refused_record_is_forgotten_when_its_dead_letter_is_written() -> None:
    process = Process(MemoryKafka())
    process.kafka.appending = no_output
    for offset in range(3):
        batch = Batch(
            1, [message(offset)], {LOG: offset}, {LOG: offset + 1}, {LOG: offset + 1}, membership=b"member"
        )
        process.recover()
        with pytest.raises(InDoubt):
            process.delivery.submit(batch)
        process.recover()
        process.delivery.submit(batch)

    assert len(process.kafka.visible(DEAD)) == 3
    assert not process.delivery._condemned


def test_what_takes_longer_than_a_transaction_may_is_tried_in_smaller_ones() -> None:
    kafka = MemoryKafka()
    process = Process(kafka)
    room: list[int] = []

    def slowly(_: str, place: LogPartition, _key: bytes | None) -> None:
        room.append(place == OUT)
        if sum(room) > 10:
            raise InDoubt("records have no delivery report after 10 s")

    position = 0
    for _ in range(40):
        process.recover()
        kafka.appending = slowly
        with suppress(InDoubt):
            while position < 100:
                room.clear()
                end = min(100, position + (process.delivery.narrowed_to or 100))
                messages = [message(offset) for offset in range(position, end)]
                process.delivery.submit(Batch(1, messages, {LOG: position}, {LOG: end}, {LOG: end}, membership=b"member"))
                position = end
        kafka.appending = lambda *_: None

    assert position == 100
    assert len(kafka.visible(OUT)) == 100


def test_a_message_whose_dead_letter_is_refused_too_stops_the_route_with_the_remedy() -> None:
    """Tried again it would be refused again, for ever; and put aside it is nowhere."""
    process = Process(MemoryKafka())
    process.recover()
    process.kafka.appending = no_output
    batch = Batch(1, [message(0)], {LOG: 0}, {LOG: 1}, {LOG: 1}, membership=b"member")
    with pytest.raises(InDoubt):
        process.delivery.submit(batch)
    process.recover()

    def nothing(_: str, partition: LogPartition, _key: bytes | None) -> None:
        if partition in (OUT, DEAD):
            raise RecordRefused("it is too large")

    process.kafka.appending = nothing
    with pytest.raises(Stopped, match=r"dead letter of .* is refused as well .*raise max.message.bytes of 'dead'"):
        process.delivery.submit(batch)
    assert not process.kafka.visible(DEAD)


def test_a_redriven_message_that_is_refused_again_is_a_dead_letter_again() -> None:
    """What it died of before is not believed; what it dies of now must be, or it would be tried without end."""
    process = Process(MemoryKafka())
    process.kafka.appending = no_output
    for replays in ({}, {message(0).digest: 1}):
        batch = Batch(1, [message(0)], {LOG: 0}, {LOG: 1}, {LOG: 1}, membership=b"member", replays=replays)
        process.recover()
        with pytest.raises(InDoubt):
            process.delivery.submit(batch)
        process.recover()
        process.delivery.submit(batch)

    assert [dict(one.headers())[PREFIX + "replay_count"] for one in process.kafka.visible(DEAD)] == [b"0", b"1"]
