"""An accident counts once it has happened, and whatever fails in one makes the run no clean one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.chaos.course import Course
from relay.chaos.faults import Deed, StageFaults
from relay.chaos.history import FILE, History, read
from relay.chaos.nemesis import Fault, Kind
from relay.world import schedule


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / FILE)
    yield made
    made.close()


def struck(kind: Kind, deed: Deed, history: History) -> tuple[Course, list[str]]:
    """Let one accident happen; return its course and the phases that its history has."""
    course = Course([Fault(0.0, kind, 0.0, 0.0)], {kind: deed}, history, lambda _: None)
    course.run(0.05, lambda: None)
    course.finish(lambda: None)
    return course, [entry["phase"] for entry in read(history.path)]


@pytest.mark.parametrize("failure", [OSError("gone"), KeyError("of no kind that was thought of")])
def test_whatever_fails_in_an_accident_is_complained_of(failure: Exception, history: History) -> None:
    def deed(_fault: Fault, begin: Any) -> str:
        begin("broker 1")
        raise failure

    course, phases = struck(Kind.BROKER_KILL, deed, history)

    assert course.complaints == [f"kill a broker (broker 1) could not be undone: {failure}"]
    assert phases == ["begin", "failed"]


class Faults(StageFaults):
    """A database whose only session ends in the moment in which it is struck."""

    def __init__(self) -> None:
        self._database = schedule.lock()

    def _ask(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return [(False,)] if "terminate" in statement else [(2**22 + 1, "a session")]  # a pid that no process may have


@pytest.mark.parametrize("kind", [Kind.BACKEND_KILL, Kind.BACKEND_END])
def test_a_session_that_had_ended_before_it_was_struck_is_no_accident(kind: Kind, history: History) -> None:
    faults = Faults()

    course, phases = struck(kind, faults._kill_backend if kind is Kind.BACKEND_KILL else faults._end_backend, history)

    assert (sum(course.faults.values()), course.missed, course.complaints, phases) == (0, 1, [], ["missed"])
