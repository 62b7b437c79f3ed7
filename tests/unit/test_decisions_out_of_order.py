"""A writer's decisions are looked through backwards: what stands is found, whatever else was decided since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest

from relay.capture.decisions import Attempt, Unit, UnitDecision, batch_unit, encode_decision, named_unit
from relay.config.timing import Timing
from relay.kafka import decisions
from relay.kafka.decisions import DecisionWriter
from relay.message.errors import ConfigError, InDoubt, Stopped, Stuck
from relay.message.record import LogPartition

ANOTHER_VERSION = b"\xc3\x01" + bytes(8)


class Topic:
    """The topic of decisions as its readers and its one writer see it; what is produced is committed at once.

    From ``open_at`` on somebody else's transaction is open: who reads what is committed sees the topic end there.
    """

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self.open_at: int | None = None
        self.committed = False
        self.fencing: Callable[[], object] = bool

    def reader(self, *_: object, committed: bool, **__: object) -> Topic:
        made = copy(self)
        made.committed = committed
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def watermarks(self, _place: LogPartition) -> tuple[int, int]:
        is_hidden = self.committed and self.open_at is not None
        return 0, (self.open_at or 0) if is_hidden else len(self.records)

    def read(self, ranges: Mapping[LogPartition, tuple[int, int]]) -> Iterator[list[Any]]:
        for place, (first, end) in ranges.items():
            if self.committed and self.open_at is not None and self.open_at < end:
                raise Stuck("an open transaction hides the rest")
            yield [self._record(place, offset) for offset in range(max(first, 0), min(end, len(self.records)))]

    def produce(self, _place: LogPartition, key: bytes, value: bytes) -> None:
        self.records.append((key, value))

    def _record(self, place: LogPartition, offset: int) -> Any:
        def always(given: object) -> Callable[[], object]:
            return lambda: given

        key, value = self.records[offset]
        given = {"key": key, "value": value, "offset": offset, "topic": place.topic, "partition": place.partition}
        return SimpleNamespace(**{name: always(one) for name, one in given.items()})


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()

    def nothing(*_: object) -> None: ...

    instance = SimpleNamespace(
        transactional_id="", init=lambda: made.fencing(), begin=nothing, produce=made.produce, flush=nothing, commit=nothing, discard=nothing
    )
    monkeypatch.setattr(decisions, "PartitionReader", made.reader)
    monkeypatch.setattr(DecisionWriter, "_instance", lambda *_: instance)
    return made


def decide(unit: Unit, run: str, *, committed: bool = True) -> UnitDecision:
    attempts = (Attempt(run.encode().ljust(16), 1, (LogPartition("orders", 0),)),) if committed else ()
    return DecisionWriter({}, Timing(), "shop").decide(UnitDecision(unit, run, committed, attempts))


def test_a_batch_is_decided_once_also_where_a_named_write_has_the_name_of_its_query(topic: Topic) -> None:
    first = decide(batch_unit("flights", 8), "one")
    decide(named_unit("flights"), "load")

    again = decide(batch_unit("flights", 8), "two")

    assert (again.run, len(topic.records)) == (first.run, 2), "its markers would prove both runs"
    assert decide(named_unit("flights"), "load-again").run == "load"


def test_a_batch_is_decided_once_also_where_a_run_of_an_earlier_one_was_closed_since(topic: Topic) -> None:
    first = decide(batch_unit("q", 6), "one")
    decide(batch_unit("q", 5), "gone", committed=False)

    again = decide(batch_unit("q", 6), "two")

    assert (again.run, len(topic.records)) == (first.run, 2)


def test_what_a_former_driver_decides_until_it_is_fenced_stands(topic: Topic) -> None:
    """Read before the fence, nothing would show of it: the batch would be decided twice, and both runs' rows would count."""
    attempts = (Attempt(b"former".ljust(16), 1, (LogPartition("orders", 0),)),)
    former = encode_decision(UnitDecision(batch_unit("q", 6), "former", True, attempts))

    def fencing() -> None:
        topic.records.append(former)
        topic.fencing = bool

    topic.fencing = fencing
    assert decide(batch_unit("q", 6), "next").run == "former"
    assert topic.records == [former]


def test_a_batch_whose_decision_another_writers_open_transaction_hides_is_not_decided_again(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stable offset lies below it then: what is read up to there says that nothing is decided."""
    monkeypatch.setattr(decisions, "PAUSE_S", 0.0)
    attempts = (Attempt(b"one".ljust(16), 1, (LogPartition("orders", 0),)),)
    topic.records += [(b"other/1", b"open"), encode_decision(UnitDecision(batch_unit("q", 6), "one", True, attempts))]
    topic.open_at = 0

    with pytest.raises(InDoubt, match="q/6 is decided is unknown"):
        decide(batch_unit("q", 6), "two")

    assert len(topic.records) == 2
    topic.open_at = None
    assert decide(batch_unit("q", 6), "two").run == "one"


def test_a_batch_behind_a_later_one_of_its_query_is_refused(topic: Topic) -> None:
    decide(batch_unit("q", 5), "one")

    with pytest.raises(ConfigError, match=r"batch 3 of q comes behind batch 5, which is decided.*give it another name"):
        decide(batch_unit("q", 3), "two")
    with pytest.raises(ConfigError, match="batch 3 of q"):
        DecisionWriter({}, Timing(), "shop").known(UnitDecision(batch_unit("q", 3), "two", committed=True))

    assert decide(batch_unit("q", 5), "three").run == "one"
    assert len(topic.records) == 1


def test_a_stream_that_comes_back_to_a_batch_before_its_last_is_refused_also_if_that_is_decided(topic: Topic) -> None:
    """Its checkpoint went back: Spark has planned the batch anew, and its rows would count for written."""
    decide(batch_unit("q", 3), "one")
    decide(batch_unit("q", 4), "one")
    wanted = UnitDecision(batch_unit("q", 3), "two", committed=True)
    last, closed = replace(wanted, unit=batch_unit("q", 4)), replace(wanted, committed=False)
    writer = DecisionWriter({}, Timing(), "shop")

    for ask in (writer.decide, writer.known):
        with pytest.raises(ConfigError, match=r"batch 3 of q comes behind batch 4, .*bring its checkpoint back"):
            ask(wanted, is_streams=True)
        stands = [ask(last, is_streams=True), ask(wanted)]
        assert [one.run for one in stands if one] == ["one", "one"], "whoever numbers batches himself may ask again for any"

    assert writer.decide(closed, is_streams=True).committed
    assert len(topic.records) == 2


def test_behind_a_named_write_of_another_version_the_query_goes_on_and_its_batches_are_known(topic: Topic) -> None:
    decide(batch_unit("q", 6), "one")
    topic.records.append((b"q", ANOTHER_VERSION))

    assert decide(batch_unit("q", 6), "two").run == "one"
    assert decide(batch_unit("q", 7), "two").run == "two"
    with pytest.raises(Stopped):
        decide(named_unit("q"), "load")


def test_a_batch_is_looked_for_behind_an_earlier_one_that_another_version_wrote_of(topic: Topic) -> None:
    decide(batch_unit("q", 6), "one")
    topic.records.append((b"q/5", ANOTHER_VERSION))  # the close of a run, maybe

    assert decide(batch_unit("q", 6), "two").run == "one"
