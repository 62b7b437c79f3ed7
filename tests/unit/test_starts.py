"""Where a partition is read from: the start policy holds once, a lost position is never guessed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal

import orjson
import pytest

from relay.message.errors import NAMESAKE_REMEDY, Stopped
from relay.message.record import LogPartition
from relay.run.starts import StartPolicy, recorded_start

ID, OTHER_ID = b"1" * 16, b"2" * 16


class Shared:
    """The control topic, in memory: the first record under a key decides."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []

    def first(self, key: bytes) -> bytes | None:
        return next((value for name, value in self.records if name == key), None)

    def put(self, key: bytes, value: bytes, *, wait: bool) -> None:
        assert wait, "a start that is not acknowledged must not be acted on"
        self.records.append((key, value))


def policy(
    register: Shared,
    start: Literal["earliest", "latest"] = "earliest",
    marks: Mapping[int, tuple[int, int]] | None = None,
    topic_id: bytes = ID,
) -> StartPolicy:
    known = marks or {0: (0, 10), 1: (5, 20)}
    return StartPolicy(
        register,
        route="main",
        policy=start,
        topics={"log": len(known)},
        topic_ids={"log": topic_id},
        watermarks=lambda p: known[p.partition],
    )


def place(partition: int) -> LogPartition:
    return LogPartition("log", partition)


def test_earliest_is_the_beginning_of_each_partition() -> None:
    assert policy(Shared()).resolve({place(0): None, place(1): None}, (), {}) == {place(0): 0, place(1): 5}


class Overtaken(Shared):
    """Another worker records its start between this one's question and its answer."""

    def __init__(self, other: bytes) -> None:
        super().__init__()
        self._other = other

    def put(self, key: bytes, value: bytes, *, wait: bool) -> None:
        if not self.records:
            super().put(key, self._other, wait=True)
        super().put(key, value, wait=wait)

    def compact(self) -> None:
        """Keep the last record of each key, as the broker does."""
        self.records = list(dict(self.records).items())


def test_a_first_start_that_is_refused_is_not_recorded_and_a_recorded_one_is_not_asked_about() -> None:
    def refuse(topics: Collection[str]) -> None:
        assert list(topics) == [f"log/{ID.hex()}"]
        raise Stopped("not so")

    def made(check_new: Callable[[Collection[str]], None]) -> StartPolicy:
        return StartPolicy(
            register, route="main", policy="earliest", topics={"log": 1}, topic_ids={"log": ID},
            watermarks=lambda _: (3, 10), place="topic out", check_new=check_new,
        )  # fmt: skip

    register = Shared()
    with pytest.raises(Stopped, match="not so"):
        made(refuse).resolve({place(0): None}, (), {})
    assert register.records == []
    assert made(lambda _: None).resolve({place(0): None}, (), {}) == {place(0): 3}
    assert orjson.loads(register.records[0][1])["place"] == "topic out"
    assert made(refuse).resolve({place(0): None}, (), {}) == {place(0): 3}


def test_compaction_leaves_the_word_of_who_recorded_the_start_first() -> None:
    first = Shared()
    policy(first, marks={0: (0, 10)}).record()
    ((_, word),) = first.records
    register = Overtaken(word)
    policy(register, marks={0: (3, 10)}).record()  # retention went on between the two

    register.compact()

    assert recorded_start(register, "main", place(0), ID) == 0


def test_latest_is_the_end_as_it_was_when_first_recorded() -> None:
    register = Shared()
    assert policy(register, "latest").resolve({place(0): None}, (), {}) == {place(0): 10}

    later = policy(register, "latest", {0: (0, 99), 1: (5, 99)})

    assert later.resolve({place(0): None, place(1): None}, (), {}) == {place(0): 10, place(1): 20}
    assert len(register.records) == 1


def test_of_two_workers_that_start_together_the_first_record_decides() -> None:
    register = Shared()
    slow, fast = policy(register, "latest", {0: (0, 50)}), policy(register, "latest", {0: (0, 40)})
    fast.record()
    register.records.append((b"start/main", orjson.dumps({"policy": "latest", "starts": {}})))

    slow.record()

    assert slow.resolve({place(0): None}, (), {}) == {place(0): 40}


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_partition_added_later_begins_at_its_beginning(start: Literal["earliest", "latest"]) -> None:
    register = Shared()
    policy(register, start, {0: (0, 10)}).record()

    grown = policy(register, start, {0: (0, 10), 1: (3, 30)})

    assert grown.resolve({place(1): None}, (), {}) == {place(1): 3}


def test_a_stored_position_is_kept() -> None:
    assert policy(Shared()).resolve({place(0): 7, place(1): 20}, {place(0)}, {}) == {place(0): 7, place(1): 20}


def test_a_position_that_one_broker_does_not_know_and_another_does_is_gone_on_from() -> None:
    asked: list[tuple[LogPartition, int]] = []

    def end_anew(partition: LogPartition, least: int) -> int:
        asked.append((partition, least))
        return 30

    made = StartPolicy(
        Shared(), route="main", policy="earliest", topics={"log": 2}, topic_ids={"log": ID}, watermarks=lambda _: (5, 20),
        end_anew=end_anew,
    )  # fmt: skip

    assert made.resolve({place(0): 20, place(1): 30}, (), {}) == {place(0): 20, place(1): 30}
    assert asked == [(place(1), 30)]
    with pytest.raises(Stopped, match="stands at 31, above the log's end 30"):
        made.resolve({place(1): 31}, (), {})


@pytest.mark.parametrize(
    ("stored", "words"), [(4, "1 offsets left it unread"), (21, "above the log's end")], ids=["below", "above"]
)
def test_a_position_outside_the_log_stops_and_never_jumps(stored: int, words: str) -> None:
    with pytest.raises(Stopped, match=words):
        policy(Shared()).resolve({place(1): stored}, (), {})


def test_a_partition_that_was_delivered_from_and_has_no_position_has_lost_it() -> None:
    register = Shared()
    policy(register).record()

    with pytest.raises(Stopped, match="no stored position although the route has run before"):
        policy(register).resolve({place(0): None}, {place(0)}, {})


def test_a_recorded_start_that_left_the_log_before_anything_was_delivered_is_lost_under_a_name() -> None:
    register = Shared()
    policy(register).record()
    marks = {0: (6, 10)}

    with pytest.raises(Stopped, match=r"begins at 6: 6 offsets left it unread.*lost:main/log/0/0-5 "):
        policy(register, marks=marks).resolve({place(0): None}, (), {})

    told = StartPolicy(
        register, route="main", policy="earliest", topics={"log": 1}, topic_ids={"log": ID},
        watermarks=lambda _: (6, 10), may_pass=lambda one, first, low: (one, first, low) == (place(0), 0, 6),
    )  # fmt: skip
    assert told.resolve({place(0): None}, (), {}) == {place(0): 6}
    assert recorded_start(register, "main", place(0), ID) == 0
    assert recorded_start(register, "main", place(0), OTHER_ID) is None


def test_what_leaves_the_log_after_a_person_has_decided_is_named_apart() -> None:
    made = StartPolicy(
        Shared(), route="main", policy="earliest", topics={"log": 2}, topic_ids={"log": ID},
        watermarks=lambda _: (9, 20), may_pass=lambda *_: False, undecided=lambda *_: (5, 9),
    )  # fmt: skip

    with pytest.raises(Stopped, match=r"7 offsets left it unread.*lost:main/log/1/5-8 "):
        made.resolve({place(1): 2}, (), {})


def test_a_topic_created_again_stops() -> None:
    register = Shared()
    policy(register).record()

    with pytest.raises(Stopped, match=f"deleted and created again.*{NAMESAKE_REMEDY}"):
        policy(register, topic_id=OTHER_ID).resolve({place(0): None}, (), {})


def test_what_left_the_log_unread_is_passed_only_when_a_person_lets_it_go() -> None:
    asked: list[tuple[LogPartition, int, int]] = []

    def may(one: LogPartition, first: int, low: int) -> bool:
        asked.append((one, first, low))
        return len(asked) > 1

    made = StartPolicy(
        Shared(), route="main", policy="earliest", topics={"log": 2}, topic_ids={"log": ID},
        watermarks=lambda _: (5, 20), may_pass=may,
    )  # fmt: skip

    with pytest.raises(Stopped, match="relay indoubt resolve CONFIG lost:main/log/1/2-4 --abort"):
        made.resolve({place(1): 2}, (), {})
    assert made.resolve({place(1): 2}, (), {}) == {place(1): 5}
    assert made.resolve({place(1): 5, place(0): 7}, (), {}) == {place(1): 5, place(0): 7}, "nothing left it"
    assert asked == [(place(1), 2, 5)] * 2
