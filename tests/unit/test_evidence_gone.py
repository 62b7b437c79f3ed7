"""A relay that was off for weeks, or whose monitor was deleted: what it cannot know any more it does not guess."""

from __future__ import annotations

import pytest

from relay.delivery.batch import Batch
from relay.delivery.topic.position_note import hint_note
from relay.message.errors import Stopped
from relay.run.starts import StartPolicy
from tests.unit.memory_kafka import MemoryKafka
from tests.unit.test_recovery_again import COUNT, LOG, MESSAGES, MONITOR, Process, delivered
from tests.unit.test_starts import Shared

HELD, BEYOND = 4, 8


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


def test_a_position_of_which_only_a_transaction_without_entries_tells_is_lost_too() -> None:
    kafka, register = MemoryKafka(), Shared()
    process = Process(kafka)
    process.delivery.recover([LOG], [process.view], kafka, starts(register).resolve, {"log": b"id"})
    process.delivery.submit(Batch(1, [], {LOG: 0}, {LOG: HELD}, {LOG: HELD}, membership=b"member"))  # markers only
    assert kafka.group[LOG][0] == HELD
    kafka.group.clear()

    with pytest.raises(Stopped, match="no stored position although the route has run before"):
        recover(kafka, register)

    assert delivered(kafka) == []


@pytest.mark.parametrize("forgotten", [False, True])
def test_so_is_that_of_a_topic_that_joined_the_route_after_its_first_start(*, forgotten: bool) -> None:
    """Nothing is recorded of it. Where the monitor has forgotten nothing it begins anew, and repeats nothing."""
    kafka, register = MemoryKafka(), Shared()
    StartPolicy(
        register, route="main", policy="earliest", topics={"before": 1}, topic_ids={"before": b"b"}, watermarks=lambda _: (0, 0)
    ).record()
    process = Process(kafka)
    begin_at = process.delivery.recover([LOG], [process.view], kafka, starts(register).resolve, {"log": b"id"})
    assert begin_at == {LOG: 0}
    process.delivery.submit(Batch(1, MESSAGES[:HELD], {LOG: 0}, {LOG: HELD}, {LOG: HELD}, membership=b"member"))
    aged = len(kafka.logs[MONITOR])
    process.deliver(HELD)
    kafka.group.clear()

    if forgotten:
        kafka.low[MONITOR] = aged
        with pytest.raises(Stopped, match=r"log\[0\].* has no stored position although it was delivered from"):
            recover(kafka, register)
    else:
        recover(kafka, register)

    assert delivered(kafka) == list(range(COUNT))


def test_a_monitor_that_was_made_again_stops_the_route_whose_positions_rest_on_it() -> None:
    kafka, register = MemoryKafka(), Shared()
    process = Process(kafka)
    process.delivery.recover([LOG], [process.view], kafka, starts(register).resolve, {"log": b"id"})
    process.delivery.submit(
        Batch(1, MESSAGES[HELD:BEYOND], {LOG: 0}, {LOG: 0}, {LOG: BEYOND}, membership=b"member")
    )  # the first ones wait for their captures
    kafka.logs[MONITOR] = []

    with pytest.raises(Stopped, match="'monitor' was deleted and created again") as stopped:
        recover(kafka, register)

    assert "--group g " in str(stopped.value)
    assert delivered(kafka) == list(range(HELD, BEYOND))


def test_a_person_who_sets_the_position_by_hand_is_obeyed() -> None:
    kafka = MemoryKafka()
    kafka.group[LOG] = (HELD, "")

    recover(kafka, Shared())

    assert delivered(kafka) == list(range(HELD, COUNT))


def test_a_route_that_led_to_a_table_meanwhile_does_not_go_on_where_that_stood() -> None:
    """The table began anew, and put the group's position back; of what the topic had by then the monitor has forgotten some."""
    kafka, register = MemoryKafka(), Shared()
    recover(kafka, register)
    kafka.low[MONITOR] = len(kafka.logs[MONITOR])
    kafka.group[LOG] = (HELD, hint_note(b"id"))

    with pytest.raises(Stopped, match=r"position 4 of log\[0\] was stored by a table or queue route of this name") as stopped:
        recover(kafka, register)

    assert "--group g " in str(stopped.value)
    assert delivered(kafka) == list(range(COUNT))


def test_what_an_earlier_table_route_of_this_name_noted_is_no_word_of_the_monitor() -> None:
    """It commits positions of quiet partitions as well, outside any transaction, and begins nothing in the monitor."""
    kafka = MemoryKafka()
    kafka.group[LOG] = (HELD, b"id".hex())

    recover(kafka, Shared())

    assert delivered(kafka) == list(range(HELD, COUNT))
