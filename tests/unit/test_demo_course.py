"""The demonstration's patience ends where nothing moves, not where Spark computes for long before its first flight."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.demo import course
from relay.demo.course import Course
from relay.demo.part import Part
from relay.message.errors import CheckFailed
from relay.run.child import LineBuffer

SLOW_S = 4.0
STALL_S = 2.0


class Still:
    """Relay, sources and readers in which nothing happens."""

    def tend(self, *_: object, **__: object) -> None:
        pass

    def killed(self, _route: str) -> bool:
        return True

    def absent(self) -> list[object]:
        return []

    def read(self) -> list[Any]:
        return [SimpleNamespace(name="r", partitions=[])]

    def execute(self, _query: str) -> Any:
        return SimpleNamespace(fetchone=lambda: (0,))

    def sight(self, _sight: object) -> None:
        pass


class Job(Part):
    """A job that says the line at each look, for longer than the patience, and fails."""

    def __init__(self, log: Path, line: str, now: list[float]) -> None:
        self.name, self.log, self._lines, self._read_to = "the Spark job", log, LineBuffer(), 0
        self._line, self._now = line, now

    def ended(self) -> int | None:
        return 5 if self._now[0] > SLOW_S else None

    def heard(self) -> list[str]:
        with self.log.open("a") as log:
            log.write(f"{self._line}\n")
        return super().heard()


def seen_through(monkeypatch: pytest.MonkeyPatch, place: Path, line: str) -> str:
    """Let a job say the line every half second, for longer than the patience, and fail; return how the course ends."""
    monkeypatch.setattr(course, "STALL_S", STALL_S)
    still: Any = Still()
    stage: Any = SimpleNamespace(config=SimpleNamespace(routes={"r": None}))
    made = Course(stage, 3000, 1, still)
    monkeypatch.setattr(made._service, "tend", still.tend)
    now = [0.0]
    monkeypatch.setattr(course, "clock", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)))
    with pytest.raises(CheckFailed) as ended:
        made._see_through(still, Job(place / "spark.log", line, now), still, still)
    return str(ended.value)


def test_spark_that_tells_of_its_steps_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "ended with exit code 5" in seen_through(monkeypatch, tmp_path, "flights: Spark is up")


def test_other_words_do_not_keep_the_demonstration_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = seen_through(monkeypatch, tmp_path, "12:00:00 ERROR nobody answers")

    assert "nothing moved for 2 s (0 of 3,000 flights are in the log)" in said
    assert "relay demo --messages 20000" in said
    assert "ERROR nobody answers" in said


def test_a_run_that_goes_on_without_end_is_not_called_still(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(course, "WHOLE_S", 1.0)

    assert "it takes longer than 1 s" in seen_through(monkeypatch, tmp_path, "flights: Spark is up")
