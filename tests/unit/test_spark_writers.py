"""What the driver's side of ``format("relay")`` decides by: the messages that its tasks sent, and nothing that it remembers."""

from __future__ import annotations

from typing import Any

import pytest

from relay.capture.decisions import Attempt, batch_unit, named_unit
from relay.message.errors import CaptureError
from relay.message.record import LogPartition
from relay.spark import source
from relay.spark.options import WriteOptions
from relay.spark.source import BatchWriter, StreamWriter
from relay.spark.writing import Appended

OPTIONS = WriteOptions("shop", {}, "orders")
UNIT = batch_unit("q", 3)
MINE = Attempt(b"n" * 16, 2, (LogPartition("orders", 0),))
SENT = [Appended(UNIT, "run", MINE), None, Appended(UNIT, "run", None)]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what is decided, in its order."""
    told: list[Any] = []
    monkeypatch.setattr(source, "commit_unit", lambda *given, **over: told.append(("commit", *given, over)))
    monkeypatch.setattr(source, "abort_unit", lambda *given: told.append(("abort", *given)))
    return told


def test_a_batch_of_a_stream_is_decided_as_one(decided: list[Any]) -> None:
    writer = StreamWriter(OPTIONS)

    writer.commit(SENT, 3)
    writer.abort(SENT, 3)

    assert decided == [("commit", OPTIONS, UNIT, "run", [MINE], {"is_streams": True}), ("abort", OPTIONS, UNIT, "run", [MINE])]


def test_a_batch_of_which_no_task_told_its_name_is_left_to_the_next_run(decided: list[Any]) -> None:
    StreamWriter(OPTIONS).abort([None, None], 3)
    with pytest.raises(CaptureError, match="its tasks tell 0 units"):
        StreamWriter(OPTIONS).commit([], 3)

    assert decided == []


@pytest.mark.parametrize(
    "sent",
    [
        [*SENT, Appended(UNIT, "another", MINE)],
        [*SENT, Appended(batch_unit("other", 3), "run", MINE)],
        [Appended(batch_unit("q", 4), "run", MINE)],
    ],
)
def test_tasks_that_tell_of_another_batch_or_run_decide_nothing(decided: list[Any], sent: list[Any]) -> None:
    for decide in (StreamWriter(OPTIONS).commit, StreamWriter(OPTIONS).abort):
        with pytest.raises(CaptureError, match=r"batch 3: its tasks tell .* nothing is decided"):
            decide(sent, 3)

    assert decided == []


def test_a_named_write_may_be_asked_for_again_whatever_came_since(decided: list[Any]) -> None:
    writer = BatchWriter(OPTIONS, named_unit("load"), "run")

    writer.commit(SENT)
    writer.abort([None])

    assert decided == [("commit", OPTIONS, named_unit("load"), "run", [MINE], {}), ("abort", OPTIONS, named_unit("load"), "run", [])]
