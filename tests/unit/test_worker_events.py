"""What the consumer reports in place of a record: who recovers, who stops with which remedy, and what is no news."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from relay.delivery.table.route import ASKED_AGAIN_S
from relay.log.holds import HoldBudget
from relay.log.intake import Intake
from relay.message.errors import Fenced, RelayError, Retriable, Stopped, Stuck, Unreachable
from relay.message.record import LogPartition
from relay.run import worker as worker_module
from relay.run.appetite import Bounds
from relay.run.worker import RouteWorker
from relay.world import clock
from tests.unit.test_intake import Fake


class Event:
    """An error or an end of partition as the client library hands it over."""

    def __init__(self, code: int, offset: int = 7, topic: str | None = "orders") -> None:
        self._error = KafkaError(code)
        self._offset = offset
        self._topic = topic

    def error(self) -> KafkaError:
        return self._error

    def topic(self) -> str | None:
        return self._topic

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return self._offset


def worker() -> tuple[RouteWorker, Any]:
    parts = MagicMock()
    parts.intake.ready_bytes.return_value = 0
    parts.destination.asked_again_s = float("inf")
    made = RouteWorker(
        group=parts.group, intake=parts.intake, destination=parts.destination, views=parts.views,
        resolving=parts.resolving, reloading=parts.reloading, redriving=parts.redriving, progress=parts.progress,
        starts=parts.starts, check_twin=parts.check_twin, topic_ids=parts.topic_ids, check_topics=parts.check_topics,
        check_epochs=parts.check_epochs,
        bounds=Bounds(10, 1000, 0.1, 100),
    )  # fmt: skip
    return made, parts


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (KafkaError._MAX_POLL_EXCEEDED, Fenced, "has lost its partitions"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Stopped, "grant the right or use a role that has it"),
        (KafkaError.UNKNOWN, Unreachable, "cannot be read now"),
        (KafkaError._AUTHENTICATION, Unreachable, "cannot be read now"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Unreachable, "orders is not known to the broker.*if it was deleted, create it again as it was"),
        (KafkaError._UNKNOWN_PARTITION, Unreachable, "orders is not known to the broker"),
        (KafkaError.TOPIC_EXCEPTION, Stopped, "cannot be read at its position.*find out which"),
    ],
)
def test_an_error_in_place_of_a_record(code: int, error: type[RelayError], words: str) -> None:
    made, _ = worker()

    with pytest.raises(error, match=words):
        made._event(Event(code))


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN, KafkaError.THROTTLING_QUOTA_EXCEEDED])
def test_a_group_that_cannot_be_looked_for_is_no_partition_that_cannot_be_read(code: int) -> None:
    made, _ = worker()

    with pytest.raises(Unreachable, match="cannot be looked for now"):
        made._event(Event(code, topic=None))


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_an_offset_that_the_log_does_not_have_is_looked_into_once(code: int) -> None:
    made, _ = worker()

    for offset in (7, 8):
        with pytest.raises(Retriable, match="cannot be read at its position"):
            made._event(Event(code, offset))
    with pytest.raises(Stopped, match=r"cannot be read at its position.*find out which"):
        made._event(Event(code, 8))


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_group_that_refuses_its_member_stops_the_worker(meanwhile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RECOVERY_BACKOFF_S", (0.01,))
    made, parts = worker()
    parts.group.generation, parts.group.assigned = -1, None
    parts.intake.ready.return_value = 0
    parts.destination.read_at_once = 10
    said = iter([[Event(KafkaError.GROUP_AUTHORIZATION_FAILED)]])  # the client says it once
    parts.group.consume.side_effect = lambda *_: next(said, [])
    if meanwhile:
        made._recover_next(Fenced("kicked out"))

    with pytest.raises(Stopped, match="grant the right or use a role that has it"):
        made._read(0.0)


def test_a_worker_that_brokers_refuse_a_right_leaves_its_group_and_says_why_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status went on saying that it runs, and its group waited for the end of its session."""
    made, parts = worker()
    monkeypatch.setattr(made, "_turn", MagicMock(side_effect=KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))))

    with pytest.raises(Stopped, match="grant the right or use a role that has it") as stopped:
        made.run(None)

    parts.progress.failed.assert_called_with(str(stopped.value))
    parts.group.close.assert_called_once()
    parts.progress.state.assert_called_with("stopped")


def test_what_stops_a_worker_may_be_that_the_log_is_another_topic() -> None:
    made, parts = worker()
    lost = Stopped("the log begins above the position")

    assert made._reason(lost) is lost
    parts.check_topics.side_effect = Unreachable("the brokers are away")
    assert made._reason(lost) is lost
    parts.check_topics.side_effect = another = Stopped("the log was created again")
    assert made._reason(lost) is another


def test_no_batch_is_delivered_once_the_log_is_another_topic() -> None:
    made, parts = worker()
    parts.destination.narrowed_to = None
    parts.intake.take_ready.return_value = []
    parts.check_topics.side_effect = Stopped("the log was created again")

    with pytest.raises(Stopped, match="created again"):
        made._deliver(0.0)

    parts.intake.take_ready.assert_called_once()  # before it: what is asked later says nothing of what was read
    parts.destination.submit.assert_not_called()


def test_nothing_is_redriven_from_what_is_another_topic_by_now() -> None:
    made, parts = worker()
    parts.destination.narrowed_to = None
    parts.redriving.turn.return_value = [(MagicMock(), 1)]
    parts.check_topics.side_effect = Stopped("the log was created again")

    with pytest.raises(Stopped, match="created again"):
        made._redrive(0.0)

    parts.redriving.turn.assert_called_once()
    parts.destination.submit.assert_not_called()


def test_the_end_of_a_partition_moves_the_position_past_markers() -> None:
    made, parts = worker()

    made._event(Event(KafkaError._PARTITION_EOF))

    parts.intake.passed.assert_called_once_with(LogPartition("orders", 2), 7)


def test_what_only_a_person_decides_is_shown_and_waits_for_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "STUCK_LOOK_S", 0.0)
    monkeypatch.setattr(worker_module, "RECOVERY_BACKOFF_S", (0.0,))
    made, parts = worker()
    mine, other = LogPartition("orders", 2), LogPartition("orders", 1)
    parts.group.assigned = [mine, other]
    words = iter([False, False, True])
    made._decided = lambda: next(words)

    made._wait_stuck(Stuck("nobody can tell", frozenset({2}), by_person=True))

    parts.progress.stuck.assert_called_once_with([mine], "nobody can tell")
    assert list(words) == [], "it waited for the word"
    parts.group.stand_by.assert_called_once_with()


@pytest.mark.parametrize("stuck", [False, True])
def test_whoever_is_told_to_end_while_nothing_can_be_done_ends_at_once(stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RECOVERY_BACKOFF_S", (0.0 if stuck else 3600.0,))
    monkeypatch.setattr(worker_module, "STUCK_RETRY_S", 3600.0)
    made, parts = worker()
    parts.group.generation, parts.group.assigned = 1, [LogPartition("orders", 2)]
    polls: list[float] = []

    def consume(_count: int, timeout_s: float) -> list[Any]:
        polls.append(timeout_s)
        made.stop()
        assert len(polls) < 3, "it goes on"
        return []

    parts.group.consume.side_effect = consume
    if stuck:
        made._wait_stuck(Stuck("nobody knows", by_person=True))
    else:
        made._recover_next(Unreachable("the database is away"))
    assert polls


def test_two_workers_that_fence_each_other_do_not_recover_in_step_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])

    def pauses() -> list[float]:
        made, parts = worker()

        def consume(*_: Any) -> list[Any]:
            now[0] += 0.005
            return []

        parts.group.consume = consume
        found = []
        for _ in range(4):
            before = now[0]
            made._recover_next(Fenced("another worker took over"))
            found.append(round(now[0] - before, 3))
        return found

    one, other = pauses(), pauses()
    assert one != other
    assert max(one[0], other[0]) <= 0.16 < max(one[-1], other[-1]), "spread round what grows with the failures"


def test_positions_are_said_once_more_when_nothing_follows() -> None:
    made, parts = worker()
    at, place = 100.0, LogPartition("orders", 2)
    parts.destination.narrowed_to = None
    parts.intake.take_ready.return_value = []
    parts.intake.positions.return_value = {place: 8}

    for second in range(20):
        made._deliver(at + second)

    said = [call.args[0].positions for call in parts.destination.submit.call_args_list]
    assert said == [{place: 8}, {place: 8}], "once as it moves, once after a while, and never again"
    assert parts.progress.moved.call_count == 1, "what is only said again does not keep the worker from being idle"


def test_a_database_is_asked_again_and_again_whether_it_still_has_the_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    made, parts = worker()
    at, place = 100.0, LogPartition("orders", 2)
    parts.destination.narrowed_to, parts.destination.asked_again_s = None, ASKED_AGAIN_S
    parts.intake.take_ready.return_value = []
    parts.intake.positions.return_value = {place: 8}
    parts.group.generation, parts.group.assigned = 1, [place]
    parts.destination.recover.return_value = {place: 8}
    parts.topic_ids.return_value = {"orders": b"i" * 16}
    monkeypatch.setattr(clock, "monotonic", lambda: at)
    made._take_over()

    asked = []
    for second in range(100):
        made._deliver(at + second)
        asked += [second] if len(parts.destination.submit.call_args_list) > len(asked) else []

    assert asked == [30, 60, 90]
    assert all(call.args[0].positions == {place: 8} for call in parts.destination.submit.call_args_list)


@pytest.mark.parametrize(
    ("size", "part", "most"),
    [(1, "value", 2 * 10 + 1), (100_000, "value", 2), (100_000, "key", 2), (100_000, "headers", 2)],
    ids=["many", "large", "large keys", "large headers"],
)
def test_a_destination_that_makes_it_wait_does_not_fill_its_memory(size: int, part: str, most: int) -> None:
    payload: dict[str, Any] = {part: [("ce_subject", b"v" * size)] if part == "headers" else b"v" * size}
    made, parts = worker()
    parts.destination.read_at_once = 1 if size > 1 else 10
    place = LogPartition("orders", 0)
    made._intake = Intake([], "none", budget=HoldBudget(1 << 20), marker_wait_s=1, askable=frozenset())
    made._intake.start({place: 0}, {"orders": b"i" * 16})
    made._running, made._generation = {place: 0}, 1
    parts.group.generation = 1
    reading: list[int] = [0]  # where the consumer stands; empty while it reads nothing

    def consume(count: int, _patience: float) -> list[Fake]:
        found = [Fake(reading[0] + n, **payload) for n in range(count)] if reading else []
        reading[:] = [reading[0] + count] if reading else []
        return found

    parts.group.consume = consume
    parts.group.stand_by = reading.clear
    parts.group.start = lambda offsets: reading.append(offsets[place])
    parts.destination.narrowed_to = None
    parts.destination.settled.return_value = False

    for _ in range(1000):
        made._turn()

    assert made._intake.ready() <= most, "at the bound nothing more is read"
    parts.destination.settled.return_value = True
    for _ in range(1000):
        made._turn()
    delivered = [m.offset for call in parts.destination.submit.call_args_list for m in call.args[0].messages]
    assert delivered == list(range(len(delivered))), "it goes on where it stood"
    assert len(delivered) > 500


def test_whoever_loses_its_partitions_while_it_opens_their_indexes_recovers_nothing() -> None:
    made, parts = worker()
    parts.group.assigned = [LogPartition("orders", 2)]
    parts.group.stay.side_effect = Fenced("another assignment")
    parts.views.take.side_effect = lambda _partitions, meanwhile: meanwhile()

    with pytest.raises(Fenced):
        made._take_over()

    parts.destination.recover.assert_not_called()


def test_a_drain_that_cannot_end_what_is_under_way_leaves_the_group() -> None:
    made, parts = worker()
    parts.destination.close.side_effect = Unreachable("the monitor does not answer")

    with pytest.raises(Unreachable):
        made._drain()

    parts.group.close.assert_called_once()
    assert [call.args[0] for call in parts.progress.state.call_args_list] == ["draining", "stopped"]


def test_topics_of_a_route_that_do_not_come_together_are_not_delivered_from() -> None:
    made, parts = worker()
    parts.group.generation = 1
    parts.group.assigned = [LogPartition("orders", 0), LogPartition("orders", 1), LogPartition("returns", 1)]
    parts.topic_ids.return_value = {"orders": b"o" * 16, "returns": b"r" * 16}

    with pytest.raises(Retriable, match=r"orders\[0\] came without returns\[0\], which another worker has.*different topics in `from`"):
        made._take_over()

    parts.destination.recover.assert_not_called()
    parts.group.assigned.append(LogPartition("returns", 0))
    made._take_over()
    parts.destination.recover.assert_called_once()


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH])
def test_who_was_fenced_says_that_another_has_taken_over_and_warns_nobody(code: int) -> None:
    made, parts = worker()
    made.stop()

    with capture_logs() as logs:
        made._sort_out(KafkaException(KafkaError(code)))

    (said,) = [one for one in logs if one["event"] == "recovering"]
    assert said["log_level"] == "info"
    assert said["reason"].startswith("another worker has taken over, or the brokers ended a transaction that took too long: ")
    parts.progress.failed.assert_called_once_with(said["reason"])


def test_who_is_fenced_again_and_again_warns() -> None:
    made, _ = worker()
    made.stop()

    with capture_logs() as logs:
        made._sort_out(KafkaException(KafkaError(KafkaError._FENCED)))
        made._sort_out(KafkaException(KafkaError(KafkaError._FENCED)))

    assert [one["log_level"] for one in logs if one["event"] == "recovering"] == ["info", "warning"]


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._AUTHENTICATION])
def test_what_is_no_fence_is_a_warning(code: int) -> None:
    """So is a commit that was under way when its connection had to show a password that was changed meanwhile."""
    made, _ = worker()
    made.stop()

    with capture_logs() as logs:
        made._sort_out(KafkaException(KafkaError(code)))

    assert [one["log_level"] for one in logs if one["event"] == "recovering"] == ["warning"]
